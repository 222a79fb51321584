//! The driver's own limits of the containers that have a share. They hold for programs that go round the library.
//!
//! The agent compares what is limited with the ledger at each tick, and asks the driver for what differs: a new
//! container, a share of another size, a container that has ended. So a lost answer, a restart of the agent and a
//! limit that the driver refused for a while need no code of their own.
//!
//! # What the limit is
//! The share, and one context more, or 64 MiB if contexts cost less. So the library refuses first, with its counts and
//! its exact number. A context more, because a program that is not honest opens one without a charge.
//!
//! # What is left behind
//! Every group is written down before it is limited. A group is lifted when its last process has ended, which is
//! before its container runtime removes it. The next agent lifts what this one could not.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use apportion_abi::{Bytes, CardUuid};
use apportion_cgroup::owner;
use apportion_ledger::{
    Allocation, AllocationId, AllocationOwner, AllocationPhase, Ledger, ProcessId,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use super::cards::CardInventory;
use super::context_cost::{ContextCosts, LEEWAY};
use crate::atomic_write;
use crate::driver::group_limits::{
    DriverLimitSupport, GroupLimitThread, LimitOutcome, LimitReport,
};
use crate::processes::procfs;
use crate::runtime::cgroup_tree::{CgroupTree, is_populated};
use crate::telemetry::view::DriverLimitCounts;

/// The version of the file.
const VERSION: u32 = 1;
/// How long until the driver is asked again for a limit that it refused.
const AGAIN_IN: Duration = Duration::from_secs(1);
/// The unit of limits. NVIDIA's hook knows whole MiB only.
const UNIT: u64 = 1 << 20;

/// The limits of groups, and the driver that keeps them.
pub(super) struct DriverLimits {
    mode: LimitMode,
    support: DriverLimitSupport,
    driver: Option<(GroupLimitThread, CgroupTree)>,
    groups: BTreeMap<PathBuf, LimitedGroup>,
    /// The processes whose group was looked up.
    known: HashSet<ProcessId>,
    record: PathBuf,
    failures: u64,
}

/// Whether limits are set, or only lifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitMode {
    Auto,
    Off,
}

/// A control group that has a limit or gets one.
#[derive(Debug, Default)]
struct LimitedGroup {
    allocation: String,
    /// The limits that the driver has confirmed.
    applied: BTreeMap<CardUuid, Bytes>,
    /// The cards that it may have a limit on.
    cards: Vec<CardUuid>,
    /// Whether the driver owes an answer.
    is_asked: bool,
    /// When the driver may be asked again.
    again: Option<Instant>,
    was_told: bool,
    /// To be answered when the container may start.
    starting: Option<oneshot::Sender<()>>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RecordFile {
    version: u32,
    /// Who keeps limits on this node, for `apportion doctor --node`; empty if nobody does.
    backend: String,
    /// Why nobody does.
    absence: String,
    groups: Vec<GroupRecord>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct GroupRecord {
    folder: PathBuf,
    allocation: String,
    cards: Vec<String>,
}

impl DriverLimits {
    /// Nothing is limited yet. `record` is the file in which groups are written down.
    pub(super) fn new(is_on: bool, record: PathBuf) -> Self {
        let groups = load(&record);
        Self {
            mode: if is_on {
                LimitMode::Auto
            } else {
                LimitMode::Off
            },
            support: DriverLimitSupport::Unavailable("not tried yet".to_owned()),
            driver: None,
            groups,
            known: HashSet::new(),
            record,
            failures: 0,
        }
    }

    /// Starts to use the driver's limits. With `off` only if an earlier agent has left some.
    pub(super) fn start(&mut self, library: std::ffi::OsString, root: &Path) {
        if self.mode == LimitMode::Off && self.groups.is_empty() {
            self.support = off();
            self.save();
            return;
        }
        let Some(tree) = CgroupTree::at(root) else {
            self.support = DriverLimitSupport::Unavailable(format!(
                "{} has no control groups of version 2",
                root.display()
            ));
            self.save();
            return;
        };
        let thread = GroupLimitThread::start(library, tree.clone());
        self.driver = Some((thread, tree));
    }

    /// Tries whether the driver keeps limits on these cards.
    pub(super) fn try_out(&self, cards: Vec<CardUuid>) {
        if let Some((driver, _)) = &self.driver {
            driver.try_out(cards);
        }
    }

    pub(super) fn is_started(&self) -> bool {
        self.driver.is_some()
    }

    /// Whether new containers get limits.
    pub(super) fn is_active(&self) -> bool {
        matches!(self.support, DriverLimitSupport::Active { .. }) && self.mode == LimitMode::Auto
    }

    pub(super) fn support(&self) -> &DriverLimitSupport {
        &self.support
    }

    /// How many groups have a limit on a card, and how often the driver refused one.
    pub(super) fn counts(&self) -> DriverLimitCounts {
        let groups = self.groups.values();
        let limited = groups.filter(|group| !group.applied.is_empty());
        DriverLimitCounts {
            containers: limited.count(),
            failures: self.failures,
        }
    }

    /// The driver's limits of a share, by card.
    pub(super) fn of(
        &self,
        allocation: &Allocation,
        costs: &ContextCosts,
        inventory: &CardInventory,
    ) -> Vec<(CardUuid, Bytes)> {
        let DriverLimitSupport::Active { cards, .. } = &self.support else {
            return Vec::new();
        };
        if !is_of_pod(&allocation) || self.mode == LimitMode::Off {
            return Vec::new();
        }
        let grants = allocation.grants.iter();
        let limited = grants.filter(|grant| cards.contains(&grant.card));
        limited
            .map(|grant| {
                let cost = costs.of(inventory.model(grant.card)).first;
                let found = inventory.find(grant.card);
                let most = found.map_or(grant.ceiling(), |card| card.capacity.total);
                let hard = grant.ceiling().plus(cost.max(LEEWAY)).rounded_up(UNIT);
                (grant.card, hard.min(most.rounded_down(UNIT)))
            })
            .collect()
    }

    /// The next report of the driver. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> LimitReport {
        match &mut self.driver {
            Some((driver, _)) => driver.next().await,
            None => std::future::pending().await,
        }
    }

    /// Takes a report of the driver.
    pub(super) fn handle_report(&mut self, report: LimitReport) {
        match report {
            LimitReport::Support(_) if self.mode == LimitMode::Off => self.support = off(),
            LimitReport::Support(support) => {
                match &support {
                    DriverLimitSupport::Active { backend, cards } => info!(
                        backend = backend.word(),
                        cards = cards.len(),
                        "Driver keeps memory limits of containers"
                    ),
                    DriverLimitSupport::Unavailable(reason) => {
                        info!(reason, "Driver keeps no memory limits of containers");
                    }
                }
                self.support = support;
                self.save();
            }
            LimitReport::Limited(folder, outcomes) => self.limited_as(&folder, outcomes),
        }
    }

    fn limited_as(&mut self, folder: &Path, outcomes: Vec<LimitOutcome>) {
        let Some(group) = self.groups.get_mut(folder) else {
            return;
        };
        group.is_asked = false;
        if let Some(starting) = group.starting.take() {
            let _ = starting.send(());
        }
        let is_lifting = outcomes.iter().all(|outcome| outcome.hard.is_none());
        for outcome in outcomes {
            match (outcome.result, outcome.hard) {
                (Ok(()), Some(hard)) => drop(group.applied.insert(outcome.card, hard)),
                (Ok(()), None) => {
                    group.applied.remove(&outcome.card);
                    group.cards.retain(|card| *card != outcome.card);
                }
                (Err(problem), _) => {
                    self.failures += 1;
                    group.again = Some(Instant::now() + AGAIN_IN);
                    if !std::mem::replace(&mut group.was_told, true) {
                        warn!(group = %folder.display(), card = %outcome.card, limit = outcome.hard.map(|of| of.0), %problem, "Failed to set the driver's memory limit of a container");
                    }
                }
            }
        }
        let is_over = is_lifting && (group.cards.is_empty() || !folder.is_dir());
        if is_over {
            debug!(group = %folder.display(), "Driver's memory limit of a container lifted");
            self.groups.remove(folder);
            self.save();
        }
    }

    /// Enters the group of a container, if it is not known yet.
    fn enter(&mut self, folder: PathBuf, allocation: &AllocationId) {
        if let Some(known) = self.groups.get_mut(&folder) {
            known.allocation.clone_from(&allocation.0);
            return;
        }
        let group = LimitedGroup {
            allocation: allocation.0.clone(),
            ..LimitedGroup::default()
        };
        self.groups.insert(folder, group);
    }

    /// Asks the driver for what a group should have and has not. `None` lifts its limits.
    fn ask(&mut self, folder: &Path, wanted: Option<&[(CardUuid, Bytes)]>) {
        let Some(group) = self.groups.get_mut(folder) else {
            return;
        };
        let is_early = group.again.is_some_and(|again| Instant::now() < again);
        if group.is_asked || is_early {
            return;
        }
        let limits: Vec<_> = match wanted {
            Some(wanted) => {
                let missing = wanted
                    .iter()
                    .filter(|(card, hard)| group.applied.get(card) != Some(hard));
                missing.map(|(card, hard)| (*card, Some(*hard))).collect()
            }
            None => group.cards.iter().map(|card| (*card, None)).collect(),
        };
        if limits.is_empty() {
            return;
        }
        let known = group.cards.len();
        for (card, _) in &limits {
            if !group.cards.contains(card) {
                group.cards.push(*card);
            }
        }
        let is_new = group.cards.len() != known;
        group.is_asked = true;
        // It must be written down first, so that the next agent knows of it.
        if is_new && !self.save() {
            if let Some(group) = self.groups.get_mut(folder) {
                group.is_asked = false;
                group.cards.truncate(known);
            }
            return;
        }
        if let Some((driver, _)) = &self.driver {
            driver.limit(folder.to_owned(), limits);
        }
    }

    /// The groups that have a limit or get one.
    pub(super) fn folders(&self) -> Vec<PathBuf> {
        self.groups.keys().cloned().collect()
    }

    /// Enters the groups of processes that were not known yet.
    pub(super) fn enter_groups(&mut self, members: Vec<(ProcessId, AllocationId)>) {
        let Some((_, tree)) = &self.driver else {
            return;
        };
        let live: HashSet<ProcessId> = members.iter().map(|(process, _)| *process).collect();
        self.known.retain(|process| live.contains(process));
        let mut found = Vec::new();
        for (process, id) in members {
            if !self.known.contains(&process)
                && let Some(text) = procfs::cgroup(process.pid)
                && procfs::is_live(process)
                && let Some(container) = owner(&text).and_then(|owner| owner.container)
                && let Some(folder) = tree.container(&container, &text)
            {
                self.known.insert(process);
                found.push((folder, id));
            }
        }
        for (folder, id) in found {
            self.enter(folder, &id);
        }
    }

    /// Gives one group the limits that it should have.
    pub(super) fn keep_group(
        &mut self,
        folder: &Path,
        ledger: &Ledger,
        costs: &ContextCosts,
        inventory: &CardInventory,
    ) {
        let Some(group) = self.groups.get(folder) else {
            return;
        };
        let id = AllocationId(group.allocation.clone());
        let Some(is_populated) = is_populated(folder) else {
            debug!(group = %folder.display(), "Container removed with the driver's memory limit");
            self.groups.remove(folder);
            self.save();
            return;
        };
        if !is_populated || self.mode == LimitMode::Off {
            if group.cards.is_empty() {
                self.groups.remove(folder);
                return;
            }
            self.ask(folder, None);
            return;
        }
        // The limit of a container whose share is gone stays until its last process has ended.
        let allocation = ledger.allocation(&id);
        let wanted = allocation.map(|of| self.of(of, costs, inventory));
        if let Some(wanted) = wanted {
            self.ask(folder, Some(&wanted));
        }
    }

    /// Enters the group of a container whose programs do not run yet. `None` if it is not found.
    pub(super) fn enter_starting(&mut self, container: &str, id: &AllocationId) -> Option<PathBuf> {
        let (_, tree) = self.driver.as_ref()?;
        let folder = tree.find(container)?;
        self.enter(folder.clone(), id);
        Some(folder)
    }

    /// Lets a container start when the driver has answered for its group.
    pub(super) fn answer_later(&mut self, folder: &Path, done: oneshot::Sender<()>) {
        if let Some(group) = self.groups.get_mut(folder)
            && group.is_asked
        {
            group.starting = Some(done);
        }
    }

    fn save(&mut self) -> bool {
        let groups = self.groups.iter();
        let groups = groups.filter(|(_, group)| !group.cards.is_empty());
        let (backend, absence) = self.support.words();
        let record = RecordFile {
            version: VERSION,
            backend: backend.to_owned(),
            absence: absence.to_owned(),
            groups: groups
                .map(|(folder, group)| GroupRecord {
                    folder: folder.clone(),
                    allocation: group.allocation.clone(),
                    cards: group.cards.iter().map(CardUuid::to_string).collect(),
                })
                .collect(),
        };
        let written = serde_json::to_vec_pretty(&record).map_err(std::io::Error::other);
        match written.and_then(|text| atomic_write::replace(&self.record, &text)) {
            Ok(()) => true,
            Err(problem) => {
                warn!(file = %self.record.display(), %problem, "Failed to write down the driver's memory limits");
                false
            }
        }
    }
}

/// Whether the share may be a container's.
pub(super) fn is_of_pod(allocation: &&Allocation) -> bool {
    let is_of_pod = match &allocation.state {
        AllocationPhase::Allocated(AllocationOwner::Pod(_) | AllocationOwner::Claim(_))
        | AllocationPhase::Draining => true,
        AllocationPhase::Allocated(AllocationOwner::Process(_))
        | AllocationPhase::Reserved { .. } => false,
    };
    is_of_pod && !allocation.is_whole
}

fn off() -> DriverLimitSupport {
    DriverLimitSupport::Unavailable("turned off".to_owned())
}

/// The groups that an earlier agent wrote down.
fn load(record: &Path) -> BTreeMap<PathBuf, LimitedGroup> {
    let Ok(text) = std::fs::read(record) else {
        return BTreeMap::new();
    };
    let read = serde_json::from_slice::<RecordFile>(&text);
    let record = match read {
        Ok(read) if read.version == VERSION => read,
        Ok(_) | Err(_) => {
            warn!(file = %record.display(), "Record of the driver's memory limits unreadable");
            return BTreeMap::new();
        }
    };
    let groups = record.groups.into_iter();
    groups
        .map(|group| {
            let cards = group.cards.iter().filter_map(|card| card.parse().ok());
            let entered = LimitedGroup {
                allocation: group.allocation,
                cards: cards.collect(),
                ..LimitedGroup::default()
            };
            (group.folder, entered)
        })
        .collect()
}
