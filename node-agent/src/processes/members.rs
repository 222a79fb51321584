//! Which process belongs to which allocation.
//!
//! In this order: the owner and its descendants (the nearest ancestor with an allocation decides), processes with a
//! slot in an account, and processes whose environment names an account. The result is remembered until the process
//! ends, because ancestors die and their children go on.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use apportion_ledger::{AllocationId, ProcessId};

use crate::account::access::AccountAccess;
use crate::processes::exits::ExitWatcher;
use crate::processes::procfs;

/// The most ancestors to follow. A process tree that changes during the walk could form a loop.
const ANCESTORS: usize = 256;

/// The live processes of all allocations.
#[derive(Debug)]
pub(crate) struct AllocationMembers {
    of: HashMap<ProcessId, AllocationId>,
    pods: HashMap<AllocationId, BTreeSet<String>>,
    accounts: PathBuf,
    /// Who may open each account. Only their processes become members by naming it.
    access: HashMap<AllocationId, AccountAccess>,
    /// All processes of the machine, read once during the current event.
    cached: Option<Vec<MemberCandidate>>,
    pub(crate) exits: ExitWatcher,
}

/// A process in a search.
#[derive(Debug)]
struct MemberCandidate {
    process: ProcessId,
    /// The UID of its pod.
    pod: Option<String>,
    /// The account that its environment names.
    account: Option<PathBuf>,
}

impl AllocationMembers {
    /// No members yet. `accounts` is the folder of the accounts.
    pub(crate) fn new(accounts: PathBuf) -> Self {
        Self {
            of: HashMap::new(),
            pods: HashMap::new(),
            accounts,
            access: HashMap::new(),
            cached: None,
            exits: ExitWatcher::new(),
        }
    }

    /// Makes a process a member, whatever it belonged to before.
    pub(crate) fn join(&mut self, process: ProcessId, id: &AllocationId) {
        self.of.insert(process, id.clone());
        self.exits.watch(process);
    }

    /// Adds pods: their processes that have the account's folder belong to the allocation.
    pub(crate) fn enter_pods(&mut self, pods: impl IntoIterator<Item = String>, id: &AllocationId) {
        self.pods.entry(id.clone()).or_default().extend(pods);
    }

    /// From here on only these users' processes become members by naming the account.
    pub(crate) fn restrict(&mut self, id: &AllocationId, access: AccountAccess) {
        self.access.insert(id.clone(), access);
    }

    /// All live processes, with their allocations.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&ProcessId, &AllocationId)> {
        self.of.iter()
    }

    /// Whether the process is a member of any allocation.
    pub(crate) fn contains(&self, process: ProcessId) -> bool {
        self.of.contains_key(&process)
    }

    /// Removes a process that ended.
    pub(crate) fn leave(&mut self, process: ProcessId) -> Option<AllocationId> {
        self.exits.forget(process);
        self.of.remove(&process)
    }

    /// The live processes of one allocation, by pid.
    pub(crate) fn of(&self, id: &AllocationId) -> Vec<ProcessId> {
        let own = self.of.iter().filter(|(_, owner)| *owner == id);
        let mut own: Vec<_> = own.map(|(process, _)| *process).collect();
        own.sort_unstable();
        own
    }

    /// Drops the processes that were read for the last event, so that the next search reads them again. One event
    /// may search for many allocations with one read.
    pub(crate) fn rescan(&mut self) {
        self.cached = None;
    }

    /// Removes an allocation with its members.
    pub(crate) fn dissolve(&mut self, id: &AllocationId) {
        for process in self.of(id) {
            self.leave(process);
        }
        self.pods.remove(id);
        self.access.remove(id);
    }

    /// Adds all descendants of all members. A container does not count as a child of the process that started it.
    pub(crate) fn follow(&mut self) {
        let mut unseen: Vec<_> = self
            .of
            .iter()
            .map(|(process, id)| (*process, id.clone()))
            .collect();
        while let Some((process, id)) = unseen.pop() {
            for child in procfs::children(process.pid)
                .into_iter()
                .filter_map(procfs::live)
            {
                if !self.of.contains_key(&child) && is_with(process, child) {
                    self.join(child, &id);
                    unseen.push((child, id.clone()));
                }
            }
        }
    }

    /// The allocation of a process. The process becomes a member of it.
    pub(crate) fn owner_of(&mut self, process: ProcessId) -> Option<AllocationId> {
        if let Some(known) = self.of.get(&process) {
            return Some(known.clone());
        }
        let id = self.inherited(process).or_else(|| self.named(process))?;
        self.join(process, &id);
        Some(id)
    }

    /// Adds every process of the machine that names the account, for example one that double-forked before the agent
    /// saw it. In the allocation's pod, every process that has the account's files counts; the sandbox has none.
    /// Returns whether there was one. All searches until [`Self::rescan`] share one read of the machine's
    /// processes.
    pub(crate) fn search(&mut self, id: &AllocationId) -> bool {
        let cached = self.cached.take().unwrap_or_else(|| self.scan());
        let folder = self.accounts.join(&id.0);
        let pods = self.pods.get(id);
        let found = cached.iter().filter(|candidate| {
            let pod = candidate.pod.as_ref();
            let is_in_its_pod = pods.is_some_and(|pods| pod.is_some_and(|pod| pods.contains(pod)));
            (is_in_its_pod && procfs::has_account(candidate.process.pid))
                || (candidate.account.as_ref() == Some(&folder)
                    && self.may_name(candidate.process, id))
        });
        let found: Vec<_> = found.map(|candidate| candidate.process).collect();
        self.cached = Some(cached);
        let before = self.of(id).len();
        for process in found {
            if !self.of.contains_key(&process) {
                self.join(process, id);
            }
        }
        self.of(id).len() > before
    }

    fn inherited(&self, process: ProcessId) -> Option<AllocationId> {
        let ancestors =
            std::iter::successors(procfs::parent(process.pid), |pid| procfs::parent(*pid));
        let live = ancestors.take(ANCESTORS).filter_map(procfs::live);
        live.filter_map(|ancestor| self.of.get(&ancestor).cloned())
            .next()
    }

    /// Reads every process's pod and account.
    fn scan(&self) -> Vec<MemberCandidate> {
        let own = std::process::id();
        let live = procfs::all().into_iter().filter_map(procfs::live);
        let others = live.filter(|process| process.pid != own);
        others
            .map(|process| MemberCandidate {
                process,
                pod: self.pod_of(process.pid),
                account: procfs::account_of(process.pid),
            })
            .collect()
    }

    fn pod_of(&self, pid: u32) -> Option<String> {
        let groups = (!self.pods.is_empty()).then(|| procfs::cgroup(pid))??;
        let owner = apportion_cgroup::owner(&groups)?;
        Some(owner.pod.as_str().to_owned())
    }

    fn named(&self, process: ProcessId) -> Option<AllocationId> {
        let account = procfs::account_of(process.pid)?;
        let id = account.strip_prefix(&self.accounts).ok()?;
        let is_one_folder = id.components().count() == 1 && Path::new(id).is_relative();
        let id = is_one_folder.then(|| id.to_str())??;
        let is_there = self.accounts.join(id).is_dir();
        let id = AllocationId(id.to_owned());
        (is_there && self.may_name(process, &id)).then_some(id)
    }

    /// A process can name any account, so it must also be allowed to open it.
    fn may_name(&self, process: ProcessId, id: &AllocationId) -> bool {
        let Some(access) = self.access.get(id) else {
            return true;
        };
        procfs::users(process.pid).is_some_and(|(real, _)| access.admits(real))
    }
}

/// Whether a child runs in its parent's pod, or in none.
fn is_with(parent: ProcessId, child: ProcessId) -> bool {
    let pod = |process: ProcessId| apportion_cgroup::owner(&procfs::cgroup(process.pid)?);
    pod(child).is_none_or(|own| pod(parent).is_some_and(|of| of.pod == own.pod))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    struct Program(Child);

    impl Program {
        fn start(account: &Path) -> Self {
            let mut command = Command::new("sleep");
            let child = command.arg("60").env("APPORTION_ACCOUNT", account).spawn();
            Self(child.expect("sleep is everywhere"))
        }

        fn process(&self) -> ProcessId {
            procfs::live(self.0.id()).expect("it was just started")
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[tokio::test]
    async fn a_process_belongs_where_its_nearest_ancestor_does() {
        let mut members = AllocationMembers::new("/nowhere".into());
        let (outer, inner) = (AllocationId("outer".into()), AllocationId("inner".into()));
        let program = Program::start(Path::new("/elsewhere"));
        assert_eq!(members.owner_of(program.process()), None);
        members.join(procfs::live(std::process::id()).unwrap(), &outer);
        assert_eq!(members.owner_of(program.process()), Some(outer));
        members.join(program.process(), &inner);
        members.follow();
        assert_eq!(members.owner_of(program.process()), Some(inner));
    }

    #[tokio::test]
    async fn a_process_belongs_to_the_account_that_its_environment_names() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("7-1")).unwrap();
        let mut members = AllocationMembers::new(folder.path().to_owned());
        let id = AllocationId("7-1".into());
        let program = Program::start(&folder.path().join("7-1"));
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while members.owner_of(program.process()) != Some(id.clone()) {
            assert!(
                std::time::Instant::now() < deadline,
                "the environment was not read"
            );
            std::thread::yield_now();
        }
        let _ = members.leave(program.process());
        assert!(members.search(&id));
        assert!(!members.search(&AllocationId("7-2".into())));
        let later = Program::start(&folder.path().join("7-2"));
        while procfs::account_of(later.0.id()).as_deref() != Some(&*folder.path().join("7-2")) {
            assert!(
                std::time::Instant::now() < deadline,
                "the environment was not read"
            );
            std::thread::yield_now();
        }
        let second = AllocationId("7-2".into());
        assert!(!members.search(&second), "one event has one look");
        members.rescan();
        assert!(members.search(&second));
    }

    #[tokio::test]
    async fn the_end_of_a_member_is_told() {
        let mut members = AllocationMembers::new("/nowhere".into());
        let program = Program::start(Path::new("/nowhere"));
        let process = program.process();
        members.join(process, &AllocationId("a".into()));
        drop(program);
        let ended = tokio::time::timeout(std::time::Duration::from_secs(5), members.exits.next());
        assert_eq!(ended.await.ok(), Some(process));
        assert_eq!(members.leave(process), Some(AllocationId("a".into())));
    }
}
