//! Maps the pid in a process's own pid namespace to the process.
//!
//! A process in a container registers the pid of its own pid namespace. If that is the agent's namespace, the pid is
//! the process's. Otherwise the agent scans all processes. A forged account can name thousands of processes that
//! never existed, so scans are rate-limited. Processes that use a card are known from the driver and are resolved at
//! once: an unresolved one would look as if it bypassed its account.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use apportion_abi::account::ProcessRegistration;
use apportion_ledger::ProcessId;

use crate::processes::procfs::{self, NamespaceScan};

/// Scans of all processes take at most one part in this many of the time.
const SHARE: u32 = 20;

/// Pid namespace, pid in it, and start time.
type Key = (u64, u32, u64);

/// The process behind a slot of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResolvedProcess {
    Live(ProcessId),
    Dead,
    /// The agent cannot tell.
    Unknown,
}

/// Known processes of other pid namespaces.
#[derive(Debug)]
pub(crate) struct PidNamespaces {
    own: Option<u64>,
    known: HashMap<Key, ProcessId>,
    /// The result of the last scan, and when the next one may run.
    by_key: HashMap<Key, ProcessId>,
    next_scan: Instant,
    /// The processes that used a card at the last call of `meet`.
    met: BTreeSet<ProcessId>,
}

impl PidNamespaces {
    pub(crate) fn new() -> Self {
        Self {
            own: procfs::pid_namespace(std::process::id()),
            known: HashMap::new(),
            by_key: HashMap::new(),
            next_scan: Instant::now(),
            met: BTreeSet::new(),
        }
    }

    /// Resolves the processes that use a card, each once.
    pub(crate) fn meet(&mut self, users: BTreeSet<ProcessId>) {
        for process in users.difference(&self.met) {
            if let Some((space, pid, process)) = procfs::in_another_namespace(self.own, *process) {
                self.by_key.insert((space, pid, process.start), process);
            }
        }
        self.met = users;
    }

    /// Finds the process of a slot. The agent may be unable to see into another namespace. So a process there counts as dead
    /// only if the agent has seen it alive, or sees all others of its namespace: it may have died while no agent ran.
    pub(crate) fn resolve(&mut self, who: ProcessRegistration) -> ResolvedProcess {
        if who.start_time == 0 {
            return self.resolve_by_pid(who);
        }
        let key = (who.pid_namespace, who.pid, who.start_time);
        let process = match self.known.get(&key) {
            _ if self.is_own(who.pid_namespace) => ProcessId {
                pid: who.pid,
                start: who.start_time,
            },
            Some(known) => *known,
            None => match self.find(key) {
                NamespaceSearch::Found(found) => *self.known.entry(key).or_insert(found),
                NamespaceSearch::Gone => return ResolvedProcess::Dead,
                NamespaceSearch::Unknown => return ResolvedProcess::Unknown,
            },
        };
        if procfs::is_live(process) {
            return ResolvedProcess::Live(process);
        }
        self.known.remove(&key);
        ResolvedProcess::Dead
    }

    /// Looks up a process of another namespace, with a scan if one is allowed now.
    fn find(&mut self, key: Key) -> NamespaceSearch {
        if let Some(found) = self.by_key.get(&key) {
            return NamespaceSearch::Found(*found);
        }
        let begun = Instant::now();
        if begun < self.next_scan {
            return NamespaceSearch::Unknown;
        }
        let scan = procfs::in_other_namespaces(self.own);
        let took = begun.elapsed().max(Duration::from_millis(1));
        self.next_scan = begun + took * SHARE;
        let found = search(&scan, key);
        let all = scan.processes.into_iter();
        let keyed = all.map(|(space, pid, process)| ((space, pid, process.start), process));
        self.by_key = keyed.collect();
        found
    }

    /// A process that could not read its start time (it has no `/proc`), or is just registering. Only its pid is
    /// known, and it counts as alive as long as any process has that pid. Death is certain only in our own
    /// namespace.
    fn resolve_by_pid(&self, who: ProcessRegistration) -> ResolvedProcess {
        if !self.is_own(who.pid_namespace) {
            return ResolvedProcess::Unknown;
        }
        match procfs::live(who.pid) {
            Some(live) => ResolvedProcess::Live(live),
            None if who.pid_namespace != 0 => ResolvedProcess::Dead,
            None => ResolvedProcess::Unknown,
        }
    }

    fn is_own(&self, namespace: u64) -> bool {
        namespace == 0 || Some(namespace) == self.own
    }
}

/// The result of a search for a process of another namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamespaceSearch {
    Found(ProcessId),
    /// Its namespace is seen, and nobody there has its pid.
    Gone,
    /// The agent cannot tell.
    Unknown,
}

/// Looks for a process in a scan that began after it was registered. One with its pid and another start time may be itself:
/// in a time namespace it reads its own start time differently.
fn search(scan: &NamespaceScan, (space, pid, start): Key) -> NamespaceSearch {
    let mut there = scan.processes.iter().filter(|(of, ..)| *of == space);
    let same_pid = there.clone().find(|(_, found, _)| *found == pid);
    match same_pid {
        Some((.., process)) if process.start == start => NamespaceSearch::Found(*process),
        None if scan.is_complete && there.next().is_some() => NamespaceSearch::Gone,
        Some(_) | None => NamespaceSearch::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> ProcessRegistration {
        let process = procfs::live(std::process::id()).unwrap();
        let pid_namespace = procfs::pid_namespace(process.pid).unwrap();
        ProcessRegistration {
            pid: process.pid,
            start_time: process.start,
            pid_namespace,
        }
    }

    #[test]
    fn a_process_of_our_own_namespace_is_told_alive_from_dead_by_its_start_time() {
        let mut namespaces = PidNamespaces::new();
        let live = procfs::live(std::process::id()).unwrap();
        assert_eq!(namespaces.resolve(own()), ResolvedProcess::Live(live));
        let earlier = ProcessRegistration {
            start_time: 1,
            ..own()
        };
        assert_eq!(namespaces.resolve(earlier), ResolvedProcess::Dead);
    }

    #[test]
    fn a_process_that_knows_nothing_of_itself_is_known_by_its_pid() {
        let mut namespaces = PidNamespaces::new();
        let live = procfs::live(std::process::id()).unwrap();
        let blind = ProcessRegistration {
            start_time: 0,
            pid_namespace: 0,
            ..own()
        };
        assert_eq!(namespaces.resolve(blind), ResolvedProcess::Live(live));
        let gone = ProcessRegistration {
            pid: u32::MAX - 1,
            ..blind
        };
        assert_eq!(namespaces.resolve(gone), ResolvedProcess::Unknown);
    }

    #[test]
    fn who_uses_a_card_is_found_while_it_is_too_soon_to_look_through_all() {
        let mut namespaces = PidNamespaces {
            own: Some(1),
            next_scan: Instant::now() + Duration::from_secs(3600),
            ..PidNamespaces::new()
        };
        let live = procfs::live(std::process::id()).unwrap();
        assert_eq!(namespaces.resolve(own()), ResolvedProcess::Unknown);
        namespaces.meet([live].into());
        assert_eq!(namespaces.resolve(own()), ResolvedProcess::Live(live));
    }

    #[test]
    fn a_process_of_a_namespace_that_cannot_be_seen_is_not_taken_for_dead() {
        let mut namespaces = PidNamespaces::new();
        let elsewhere = ProcessRegistration {
            pid_namespace: 1,
            ..own()
        };
        assert_eq!(namespaces.resolve(elsewhere), ResolvedProcess::Unknown);
    }

    #[test]
    fn a_process_is_gone_if_all_others_of_its_namespace_are_seen() {
        let process = |pid| ProcessId { pid, start: 70 };
        let scan = |is_complete| NamespaceScan {
            processes: vec![(5, 1, process(100)), (5, 7, process(107))],
            is_complete,
        };
        let found = NamespaceSearch::Found(process(107));
        for is_complete in [true, false] {
            assert_eq!(search(&scan(is_complete), (5, 7, 70)), found);
            let restarted = search(&scan(is_complete), (5, 7, 60));
            assert_eq!(restarted, NamespaceSearch::Unknown, "the pid is in use");
            let elsewhere = search(&scan(is_complete), (6, 7, 70));
            assert_eq!(elsewhere, NamespaceSearch::Unknown, "nobody is seen there");
        }
        assert_eq!(search(&scan(true), (5, 8, 70)), NamespaceSearch::Gone);
        let hidden = search(&scan(false), (5, 8, 70));
        assert_eq!(
            hidden,
            NamespaceSearch::Unknown,
            "it may be one that is hidden"
        );
    }
}
