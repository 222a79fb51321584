//! A memory control group (cgroup v1 or v2) with the limit of a program's container in the chart. Tests run a program
//! in it, so that too much memory kills the program as it would in the container.
//!
//! Creating a group needs root and a writable hierarchy. Otherwise a test runs without one and says so.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, id};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

const CGROUPS: &str = "/sys/fs/cgroup";
const VALUES: &str = "../../deploy/chart/apportion/values.yaml";
/// The unit of the chart's limits: all are whole MiB.
const UNIT: &str = "Mi";

/// A group. Dropping this removes it.
#[derive(Debug)]
pub struct MemoryGroup {
    folder: PathBuf,
    /// The file with the count of OOM kills.
    events: &'static str,
}

/// A container of the chart.
#[derive(Clone, Copy, Debug)]
pub enum ChartContainer {
    /// The node agent.
    Agent,
    /// The scheduler.
    Scheduler,
    /// The webhook.
    Webhook,
}

impl ChartContainer {
    /// The memory limit in the chart's `values.yaml`, in bytes.
    ///
    /// # Panics
    /// The chart gives none.
    #[must_use]
    pub fn limit(self) -> u64 {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(VALUES);
        let text = fs::read_to_string(path).expect("the chart has values");
        let values: Value = serde_norway::from_str(&text).expect("values are YAML");
        let part = match self {
            Self::Agent => &values,
            Self::Scheduler => &values["scheduler"],
            Self::Webhook => &values["webhook"],
        };
        let limit = part["resources"]["limits"]["memory"].as_str();
        let number = limit.and_then(|limit| limit.strip_suffix(UNIT)?.parse::<u64>().ok());
        number.expect("a memory limit in MiB") << 20
    }
}

impl MemoryGroup {
    /// A group with the limit of this container. None if the machine does not allow creating one.
    #[must_use]
    pub fn of(container: ChartContainer) -> Option<Self> {
        match Self::with(container.limit()) {
            Ok(group) => Some(group),
            Err(problem) => {
                eprintln!("no memory control group can be made, so none is used: {problem}");
                None
            }
        }
    }

    fn with(limit: u64) -> io::Result<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let is_v2 = Path::new(CGROUPS).join("cgroup.controllers").exists();
        let (root, file, events) = if is_v2 {
            (PathBuf::from(CGROUPS), "memory.max", "memory.events")
        } else {
            (
                Path::new(CGROUPS).join("memory"),
                "memory.limit_in_bytes",
                "memory.oom_control",
            )
        };
        let group = Self {
            folder: root.join(format!("apportion-test-{}-{number}", id())),
            events,
        };
        fs::create_dir(&group.folder)?;
        fs::write(group.folder.join(file), limit.to_string())?;
        // A group that does not count OOM kills is useless here.
        group.count().map(|_| group)
    }

    /// The same command, in this group from its first instruction. The child's process id is that of the command.
    /// Standard streams are those of the new command.
    #[must_use]
    pub fn around(&self, command: &Command) -> Command {
        let mut around = Command::new("/bin/sh");
        around
            .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
            .arg(self.folder.join("cgroup.procs"))
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => around.env(name, value),
                None => around.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            around.current_dir(folder);
        }
        around
    }

    /// How many processes of this group the kernel killed for lack of memory.
    ///
    /// # Panics
    /// If the kernel does not report it.
    #[must_use]
    pub fn killed(&self) -> u64 {
        self.count().expect("the kernel counts kills")
    }

    fn count(&self) -> io::Result<u64> {
        let text = fs::read_to_string(self.folder.join(self.events))?;
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        let count = line.and_then(|count| count.parse().ok());
        count.ok_or_else(|| io::Error::other(format!("{} has no oom_kill", self.events)))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A killed process stays in the group for a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_limits_every_container() {
        for container in [
            ChartContainer::Agent,
            ChartContainer::Scheduler,
            ChartContainer::Webhook,
        ] {
            assert!(container.limit() >= 64 << 20, "{container:?}");
        }
    }

    #[test]
    fn a_program_that_takes_more_is_killed_and_counted() {
        let Some(group) = MemoryGroup::of(ChartContainer::Agent) else {
            return;
        };
        let hungry = "x=$(head -c 1073741824 /dev/zero | tr '\\0' x)";
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", hungry]);
        let status = group.around(&shell).status();
        assert!(!status.expect("a shell").success());
        assert!(group.killed() > 0);
        let modest = group.around(&Command::new("/bin/true")).status();
        assert!(modest.expect("a program").success());
    }
}
