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

use crate::processes::procfs;

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

    /// Finds the process of a slot. A process of another namespace counts as dead only if the agent has seen it
    /// alive: the agent may be unable to see into the namespace.
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
                Some(found) => *self.known.entry(key).or_insert(found),
                None => return ResolvedProcess::Unknown,
            },
        };
        if procfs::is_live(process) {
            return ResolvedProcess::Live(process);
        }
        self.known.remove(&key);
        ResolvedProcess::Dead
    }

    /// Looks up a process of another namespace, with a scan if one is allowed now.
    fn find(&mut self, key: Key) -> Option<ProcessId> {
        let begun = Instant::now();
        if !self.by_key.contains_key(&key) && begun >= self.next_scan {
            let all = procfs::in_other_namespaces(self.own).into_iter();
            let keyed = all.map(|(space, pid, process)| ((space, pid, process.start), process));
            self.by_key = keyed.collect();
            let took = begun.elapsed().max(Duration::from_millis(1));
            self.next_scan = begun + took * SHARE;
        }
        self.by_key.get(&key).copied()
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
}
