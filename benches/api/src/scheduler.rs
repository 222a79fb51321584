//! The scheduler's own process, from the staged tree.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use apportion_tests::control_plane::ControlPlane;
use apportion_tests::{eventually, staged};

/// How long the scheduler may take to load the cluster.
const PATIENCE: Duration = Duration::from_secs(120);

/// What it logs when it leads, and when another scheduler does.
pub(crate) const LEADS: &str = "Cluster state loaded";
pub(crate) const WAITS: &str = "Another scheduler holds the lease";

/// The process. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct SchedulerProcess {
    child: Child,
    log: PathBuf,
}

impl SchedulerProcess {
    /// Starts the scheduler and waits until it logs `until`.
    pub(crate) fn start(
        plane: &ControlPlane,
        kubeconfig: &Path,
        filter: &str,
        until: &str,
    ) -> Result<Self> {
        let number = std::fs::read_dir(plane.dir())?.count();
        let log = plane.dir().join(format!("scheduler-{number}.log"));
        // The child ends with this process, however this process ends.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(staged().join("bin/apportion-scheduler"))
            .args(["run", "--address", "127.0.0.1:0", "--log", filter])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .stdin(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .context("failed to start the scheduler")?;
        let scheduler = Self { child, log };
        eventually(PATIENCE, until, || {
            let text = std::fs::read_to_string(&scheduler.log).unwrap_or_default();
            text.contains(until)
        });
        Ok(scheduler)
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Kills it. The control plane's folder is temporary, so the log is copied elsewhere.
    pub(crate) fn stop(&mut self, _: &ControlPlane) -> Result<()> {
        self.child.kill()?;
        let text = std::fs::read_to_string(&self.log)?;
        let kept =
            std::env::temp_dir().join(format!("apportion-bench-api-{}.log", self.child.id()));
        std::fs::write(&kept, text)?;
        println!("log: {}", kept.display());
        Ok(())
    }
}

impl Drop for SchedulerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
