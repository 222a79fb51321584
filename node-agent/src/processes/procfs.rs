//! Reads `/proc`: whether processes are alive, their parents, and the account that their environment names.
//!
//! A pid alone identifies nothing, because pids are reused. Every answer that is kept also has the start time. A
//! process whose threads have all ended counts as dead, even if its parent has not reaped it: the driver has freed
//! its memory by then.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use apportion_abi::paths::{CONTAINER_ACCOUNT, ENV_ACCOUNT, LIMITS_FILE};
use apportion_ledger::ProcessId;

/// The fields of `/proc/PID/stat` that matter here.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    state: char,
    parent: u32,
    threads: u32,
    start: u64,
}

/// The live process with this pid.
pub(crate) fn live(pid: u32) -> Option<ProcessId> {
    let stat = stat(pid)?;
    // A leader that called `pthread_exit` is a zombie while its other threads go on.
    let is_dead = matches!(stat.state, 'Z' | 'X') && stat.threads <= 1;
    (!is_dead).then_some(ProcessId {
        pid,
        start: stat.start,
    })
}

/// Whether exactly this process is alive.
pub(crate) fn is_live(process: ProcessId) -> bool {
    live(process.pid) == Some(process)
}

/// The pid of the parent.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    stat(pid)
        .map(|stat| stat.parent)
        .filter(|parent| *parent != 0)
}

/// The pids of live processes that any thread of the process started.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let lists = threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .flat_map(str::parse)
                .collect::<Vec<_>>()
        })
        .collect()
}

pub(crate) fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The name of the command.
pub(crate) fn name(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

/// The user that started the process (real uid), and the one it opens files as (filesystem uid).
pub(crate) fn users(pid: u32) -> Option<(u32, u32)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut users = users.split_whitespace().flat_map(str::parse);
    let real = users.next()?;
    // The order is real, effective, saved and filesystem uid.
    Some((real, users.nth(2)?))
}

/// The account that the environment of the process named when it started.
pub(crate) fn account_of(pid: u32) -> Option<PathBuf> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let prefix = format!("{ENV_ACCOUNT}=").into_bytes();
    let entry = environment
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(prefix.as_slice()))?;
    Some(PathBuf::from(OsString::from_vec(entry.to_vec())))
}

/// The cgroups of the process, one line for each hierarchy.
pub(crate) fn cgroup(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()
}

/// Whether the process has an account at the path that containers use. True if its files cannot be read.
pub(crate) fn has_account(pid: u32) -> bool {
    fs::exists(format!("/proc/{pid}/root{CONTAINER_ACCOUNT}/{LIMITS_FILE}")).unwrap_or(true)
}

/// A file by device and inode as in `/proc/PID/maps`. The device can differ from that of `stat`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MappedFile(String, String);

/// The file that the process has mapped at the address.
pub(crate) fn mapped_at(pid: u32, address: usize) -> Option<MappedFile> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    maps.lines()
        .find(|line| {
            let begin = line.split('-').next();
            begin.and_then(|begin| usize::from_str_radix(begin, 16).ok()) == Some(address)
        })
        .and_then(mapped_file)
}

/// Whether the process has mapped the file. False if its maps cannot be read.
pub(crate) fn has_mapped(pid: u32, file: &MappedFile) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"));
    let maps = maps.unwrap_or_default();
    maps.lines()
        .any(|line| mapped_file(line).as_ref() == Some(file))
}

fn mapped_file(line: &str) -> Option<MappedFile> {
    let mut fields = line.split_whitespace().skip(3).map(str::to_owned);
    Some(MappedFile(fields.next()?, fields.next()?))
}

/// The inode of the process's pid namespace.
pub(crate) fn pid_namespace(pid: u32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/pid"))
        .ok()
        .map(|found| found.ino())
}

/// The processes in other pid namespaces than the agent's.
#[derive(Debug)]
pub(crate) struct NamespaceScan {
    /// Each with its namespace and its pid there.
    pub(crate) processes: Vec<(u64, u32, ProcessId)>,
    /// Whether there are no others: the files of every process said where it is.
    pub(crate) is_complete: bool,
}

/// Looks through all processes for those in other pid namespaces than `own`.
pub(crate) fn in_other_namespaces(own: Option<u64>) -> NamespaceScan {
    let mut scan = NamespaceScan {
        processes: Vec::new(),
        is_complete: true,
    };
    for process in all().into_iter().filter_map(live) {
        let namespace = pid_namespace(process.pid);
        if namespace.is_some() && namespace == own {
            continue;
        }
        let pids = namespace_pids(process.pid);
        match (namespace, pids.as_slice()) {
            (Some(namespace), [.., pid]) => scan.processes.push((namespace, *pid, process)),
            // Some hosts show nobody the namespace of pid 1. One with one pid is in no nested namespace.
            (None, [_]) => {}
            // One that has just ended has no files.
            _ => scan.is_complete &= !is_live(process),
        }
    }
    scan
}

/// The same for one process.
pub(crate) fn in_another_namespace(
    own: Option<u64>,
    process: ProcessId,
) -> Option<(u64, u32, ProcessId)> {
    let namespace = pid_namespace(process.pid).filter(|found| Some(*found) != own)?;
    let pids = namespace_pids(process.pid);
    Some((namespace, *pids.last()?, process))
}

/// Changes at each boot. Pids and start times are only valid for one boot.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// The process's pid in the namespace of `/proc`, then in each nested one down to its own. Empty if they cannot be read.
fn namespace_pids(pid: u32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let pids = pids.unwrap_or_default().split_whitespace();
    pids.map_while(|pid| pid.parse().ok()).collect()
}

fn stat(pid: u32) -> Option<ProcessStat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The command's name is in parentheses and may itself contain spaces and parentheses.
fn parse_stat(text: &str) -> Option<ProcessStat> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(ProcessStat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_known_by_its_file_and_not_by_its_number_alone() {
        let pid = std::process::id();
        let line = |device: &str| format!("7f0000-7f1000 r--s 00001000 {device} 11 /run/a file");
        assert_eq!(
            mapped_file(&line("00:1a")),
            Some(MappedFile("00:1a".into(), "11".into()))
        );
        assert_ne!(mapped_file(&line("00:1a")), mapped_file(&line("00:1b")));
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let first = maps.lines().next().unwrap();
        let (begin, _) = first.split_once('-').unwrap();
        let file = mapped_at(pid, usize::from_str_radix(begin, 16).unwrap()).unwrap();
        assert!(has_mapped(pid, &file));
        assert!(!has_mapped(
            pid,
            &MappedFile("ff:ff".into(), file.1.clone())
        ));
        // A missing process, like one without permission, cannot be read.
        assert!(!has_mapped(u32::MAX, &file));
        assert_eq!(mapped_at(pid, 1), None);
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let text = "7 (a) b (c)) S 3 7 7 0 -1 1 2 3 4 5 6 7 8 9 20 0 4 0 1234 0 0";
        let expected = ProcessStat {
            state: 'S',
            parent: 3,
            threads: 4,
            start: 1234,
        };
        assert_eq!(parse_stat(text), Some(expected));
    }

    #[test]
    fn this_process_lives_and_a_later_one_with_its_pid_is_another() {
        let own = live(std::process::id()).unwrap();
        assert!(is_live(own));
        assert!(!is_live(ProcessId {
            start: own.start + 1,
            ..own
        }));
    }

    #[test]
    fn a_child_is_found_below_its_parent_and_dead_once_killed() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = live(child.id()).unwrap();
        assert!(children(std::process::id()).contains(&child.id()));
        assert_eq!(parent(child.id()), Some(std::process::id()));
        child.kill().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while is_live(process) {
            assert!(
                std::time::Instant::now() < deadline,
                "a killed child still lives"
            );
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }
}
