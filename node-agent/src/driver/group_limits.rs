//! The driver's own memory limits of control groups, on a thread of their own. A call that hangs there delays other
//! limits and nothing else.
//!
//! # When a driver keeps limits
//! Only a limit that was set and read back shows that a driver keeps limits. So the agent makes a control group of its
//! own next to those of the pods, limits it, reads the limit back and removes the group again.
//!
//! # Why the soft limit is zero
//! The driver adds the soft limit of a group to the reservation of every group above it, and takes it away only if the
//! soft limit is set to zero before the group is removed. A container runtime removes groups without asking. With a
//! soft limit of zero nothing can leak. It would protect from evictions by an MPS server, which happen only where
//! memory is promised twice, and the ledger promises none twice.
//!
//! Sources: NVIDIA's "MPS v3 Memory Partitioning"; `src/nvidia/src/kernel/mem_mgr/memacct.c` of the open kernel
//! modules 615.71.09.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use apportion_abi::{Bytes, CardUuid};
use apportion_memory_limits::{
    DriverMemoryLimits, GroupMemoryLimits, LimitsSession, NO_LIMIT, OpenLimitsError,
};
use nvml_wrapper::error::NvmlError;
use tokio::sync::mpsc as channel;

use crate::runtime::cgroup_tree::CgroupTree;

/// The agent's own group, in which it tries a limit, is named after this and its pid.
const TRIAL: &str = "apportion-limit-trial-";
/// The limit that it tries.
const TRIAL_LIMIT: Bytes = Bytes::from_mib(64);

/// Whether the driver keeps limits of control groups on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DriverLimitSupport {
    /// It keeps them, on these cards.
    Active {
        backend: LimitBackend,
        cards: Vec<CardUuid>,
    },
    /// It does not, or the agent may not use them.
    Unavailable(String),
}

impl DriverLimitSupport {
    /// Who keeps the limits, or an empty word and why nobody does.
    pub(crate) fn words(&self) -> (&str, &str) {
        match self {
            Self::Active { backend, .. } => (backend.word(), ""),
            Self::Unavailable(reason) => ("", reason),
        }
    }
}

/// Who keeps the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitBackend {
    /// The kernel's `dmem` controller.
    Dmem,
    /// The driver itself.
    Misc,
}

impl LimitBackend {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Dmem => "dmem",
            Self::Misc => "misc",
        }
    }
}

/// A request to the thread.
#[derive(Debug)]
enum LimitOrder {
    /// Try whether the driver keeps limits on these cards.
    Try(Vec<CardUuid>),
    /// Limit a group on these cards; `None` lifts its limit.
    Limit(PathBuf, Vec<(CardUuid, Option<Bytes>)>),
}

/// What the thread reports.
#[derive(Debug)]
pub(crate) enum LimitReport {
    Support(DriverLimitSupport),
    /// What came of each limit of a group; `None` was lifted.
    Limited(PathBuf, Vec<LimitOutcome>),
}

/// What came of one limit.
#[derive(Debug)]
pub(crate) struct LimitOutcome {
    pub(crate) card: CardUuid,
    pub(crate) hard: Option<Bytes>,
    pub(crate) result: Result<(), LimitError>,
}

/// Why a limit does not hold.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LimitError {
    #[error("the driver answers: {0}")]
    Driver(#[from] NvmlError),
    #[error("the driver reports another limit than it was given: {0:?}")]
    Other(Option<GroupMemoryLimits>),
}

/// The agent's side of the thread.
#[derive(Debug)]
pub(crate) struct GroupLimitThread {
    orders: mpsc::Sender<LimitOrder>,
    reports: channel::UnboundedReceiver<LimitReport>,
}

impl GroupLimitThread {
    pub(crate) fn start(library: OsString, tree: CgroupTree) -> Self {
        let (orders, ordered) = mpsc::channel();
        let (told, reports) = channel::unbounded_channel();
        std::thread::spawn(move || {
            let driver = DriverMemoryLimits::open(&library);
            while let Ok(order) = ordered.recv() {
                if told.send(perform(driver.as_ref(), &tree, order)).is_err() {
                    return;
                }
            }
        });
        Self { orders, reports }
    }

    /// Tries whether the driver keeps limits on these cards.
    pub(crate) fn try_out(&self, cards: Vec<CardUuid>) {
        let _ = self.orders.send(LimitOrder::Try(cards));
    }

    /// Limits a group on these cards; `None` lifts its limit.
    pub(crate) fn limit(&self, group: PathBuf, limits: Vec<(CardUuid, Option<Bytes>)>) {
        let _ = self.orders.send(LimitOrder::Limit(group, limits));
    }

    /// The next report. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> LimitReport {
        match self.reports.recv().await {
            Some(report) => report,
            None => std::future::pending().await,
        }
    }
}

fn perform(
    driver: Result<&DriverMemoryLimits, &OpenLimitsError>,
    tree: &CgroupTree,
    order: LimitOrder,
) -> LimitReport {
    match order {
        LimitOrder::Try(cards) => LimitReport::Support(match driver {
            Ok(driver) => try_out(driver, tree, &cards),
            Err(OpenLimitsError::Older) => DriverLimitSupport::Unavailable(
                "the driver has no memory limits, 615 or newer is needed".to_owned(),
            ),
            Err(error) => DriverLimitSupport::Unavailable(error.to_string()),
        }),
        LimitOrder::Limit(group, limits) => {
            let session = driver
                .map_err(|_| NvmlError::FunctionNotFound)
                .and_then(DriverMemoryLimits::session);
            let limits = limits.into_iter();
            let outcomes = limits.map(|(card, hard)| LimitOutcome {
                card,
                hard,
                result: match &session {
                    Ok(session) => limit(session, card, &group, hard),
                    Err(error) => Err(LimitError::Driver(again(error))),
                },
            });
            let outcomes = outcomes.collect();
            LimitReport::Limited(group, outcomes)
        }
    }
}

/// NVML's errors cannot be copied.
fn again(error: &NvmlError) -> NvmlError {
    match error {
        NvmlError::FunctionNotFound => NvmlError::FunctionNotFound,
        NvmlError::DriverNotLoaded => NvmlError::DriverNotLoaded,
        NvmlError::NoPermission => NvmlError::NoPermission,
        _ => NvmlError::Unknown,
    }
}

/// Sets a limit and reads it back.
fn limit(
    session: &LimitsSession<'_>,
    card: CardUuid,
    group: &Path,
    hard: Option<Bytes>,
) -> Result<(), LimitError> {
    let gpu = card.to_string();
    let wanted = GroupMemoryLimits {
        soft: 0,
        hard: hard.map_or(NO_LIMIT, |hard| hard.0),
    };
    session.set(&gpu, group, wanted)?;
    if hard.is_none() {
        return Ok(());
    }
    match session.get(&gpu, group)? {
        Some(found) if found == wanted => Ok(()),
        other => Err(LimitError::Other(other)),
    }
}

fn try_out(
    driver: &DriverMemoryLimits,
    tree: &CgroupTree,
    cards: &[CardUuid],
) -> DriverLimitSupport {
    let pods = tree.pods();
    remove_left(driver, &pods, cards);
    let group = pods.join(format!("{TRIAL}{}", std::process::id()));
    if let Err(error) = fs::create_dir(&group)
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return DriverLimitSupport::Unavailable(format!(
            "failed to make the control group {}: {error}",
            group.display()
        ));
    }
    let backend = if group.join("dmem.max").exists() {
        LimitBackend::Dmem
    } else {
        LimitBackend::Misc
    };
    let tried = try_in(driver, &group, cards);
    let _ = fs::remove_dir(&group);
    match tried {
        Ok(cards) => DriverLimitSupport::Active { backend, cards },
        Err(error) => DriverLimitSupport::Unavailable(reason(&error)),
    }
}

/// Removes the groups of agents that were killed while they tried.
fn remove_left(driver: &DriverMemoryLimits, pods: &Path, cards: &[CardUuid]) {
    for entry in fs::read_dir(pods).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_str().and_then(|name| name.strip_prefix(TRIAL));
        let Some(pid) = name.and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        if Path::new(&format!("/proc/{pid}")).exists() {
            continue;
        }
        if let Ok(session) = driver.session() {
            for card in cards {
                let _ = limit(&session, *card, &entry.path(), None);
            }
        }
        let _ = fs::remove_dir(entry.path());
    }
}

/// The cards on which the driver keeps limits; an error if there is none.
fn try_in(
    driver: &DriverMemoryLimits,
    group: &Path,
    cards: &[CardUuid],
) -> Result<Vec<CardUuid>, LimitError> {
    let session = driver.session()?;
    let mut kept = Vec::new();
    let mut problem = LimitError::Driver(NvmlError::NotSupported);
    for card in cards {
        let tried = limit(&session, *card, group, Some(TRIAL_LIMIT));
        // It must be lifted before the group is removed.
        let lifted = limit(&session, *card, group, None);
        match tried.and(lifted) {
            Ok(()) => kept.push(*card),
            Err(error) => problem = error,
        }
    }
    if kept.is_empty() {
        Err(problem)
    } else {
        Ok(kept)
    }
}

fn reason(error: &LimitError) -> String {
    match error {
        LimitError::Driver(NvmlError::NoPermission) => {
            "the driver does not let the agent set limits, CAP_SYS_ADMIN is needed".to_owned()
        }
        LimitError::Driver(NvmlError::NotSupported) => {
            "the driver keeps no memory limits on this node's GPUs".to_owned()
        }
        error => error.to_string(),
    }
}
