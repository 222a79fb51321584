//! The agent's published state: a snapshot of cards and allocations, made after every change and sample, and read by
//! list, watch and metrics. No reader waits for the driver or the ledger.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use apportion_abi::account::ApiFamily;
use apportion_abi::{Bytes, CardUuid};
use apportion_ledger::{
    Allocation, AllocationPhase, CardGrant, Ledger, NoticeKind, ProcessId, SuspensionCause,
    SuspensionPhase, XidSeverity,
};
use apportion_proto::v1;
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::{broadcast, watch};

use crate::account::AccountFiles;
use crate::api::wire;
use crate::driver::{CardReading, FoundCard};
use crate::kubelet::stats::KubeletStats;
use crate::processes::procfs;
use crate::runtime::nri_plugin;
use crate::telemetry::call_stats::CallStats;
use crate::telemetry::idle_stats::IdleStats;
use crate::telemetry::suspension_stats::SuspensionStats;

#[derive(Clone, Debug)]
pub(crate) struct AgentView {
    pub(crate) list: v1::ListReply,
    /// When its sample was taken; `None` right after the start.
    pub(crate) sampled: Option<Instant>,
    /// Whether the agent serves requests and the driver answers.
    pub(crate) is_ready: bool,
    pub(crate) counts: AgentStats,
    /// Why nothing is allocated, if there is another owner of the GPUs.
    pub(crate) rival: Option<String>,
    /// Why there is nothing to serve, if the agent waits for a driver.
    pub(crate) idle: Option<String>,
}

impl AgentView {
    /// The view before anything is known.
    pub(crate) fn empty(idle: Option<String>) -> Self {
        Self {
            list: v1::ListReply::default(),
            sampled: None,
            is_ready: false,
            counts: AgentStats::default(),
            rival: None,
            idle,
        }
    }
}

/// Where other tasks read the agent's state.
#[derive(Clone, Debug)]
pub(crate) struct AgentHandle {
    pub(crate) views: watch::Receiver<Arc<AgentView>>,
    pub(crate) events: broadcast::Sender<v1::Event>,
}

/// Counts since the agent started, and facts for metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentStats {
    pub(crate) accepted: u64,
    /// By reason, as in metrics.
    pub(crate) refused: BTreeMap<&'static str, u64>,
    pub(crate) adopted: u64,
    pub(crate) notices: BTreeMap<NoticeKind, u64>,
    /// XIDs by card and severity.
    pub(crate) faults: BTreeMap<(CardUuid, XidSeverity), u64>,
    /// The throttle reasons of each card that reports them, in NVML's bits.
    pub(crate) throttled: BTreeMap<CardUuid, u64>,
    /// Pods that the kubelet was about to start without a matching allocation in the ledger, by kind.
    pub(crate) disagreements: BTreeMap<&'static str, u64>,
    /// The recovery action of each card, as the driver's number.
    pub(crate) recoveries: BTreeMap<CardUuid, u64>,
    /// Whether containers get their cards through CDI; `None` until the runtime is known.
    pub(crate) has_cdi: Option<bool>,
    pub(crate) kubelet: KubeletStats,
    pub(crate) suspensions: SuspensionStats,
    pub(crate) calls: CallStats,
    pub(crate) idle: IdleStats,
    /// The number of slots in each state; empty without a kubelet.
    pub(crate) slots: BTreeMap<&'static str, usize>,
    pub(crate) driver_limits: DriverLimitCounts,
    /// How long answers to programs that ask for a larger allowance took, in seconds, by result.
    pub(crate) burst_answers: BTreeMap<&'static str, Histogram>,
    /// The NRI plugin's counts; `None` without the plugin.
    pub(crate) nri: Option<nri_plugin::NriStats>,
}

/// The counts of the driver's own limits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DriverLimitCounts {
    /// Containers that have one now.
    pub(crate) containers: usize,
    /// Limits that the driver refused.
    pub(crate) failures: u64,
}

/// A card at the latest sample.
pub(crate) fn card(
    found: &FoundCard,
    reading: Option<&CardReading>,
    ledger: &Ledger,
    context_reserve: Bytes,
) -> v1::Card {
    let card = ledger.card(found.uuid);
    v1::Card {
        uuid: found.uuid.to_string(),
        model: found.model.clone(),
        index: found.index,
        total_bytes: found.capacity.total.0,
        reserved_bytes: found.capacity.reserved.0,
        allocatable_bytes: found.capacity.allocatable().0,
        granted_bytes: ledger.granted(found.uuid).0,
        free_bytes: ledger.free(found.uuid).0,
        used_bytes: reading.map_or(0, |reading| reading.used.0),
        unmanaged_bytes: card.map_or(0, |card| card.unmanaged.0),
        health: card
            .map_or(v1::CardHealth::Unspecified, |card| {
                wire::health(card.health)
            })
            .into(),
        utilisation_percent: reading.and_then(|reading| reading.utilisation),
        context_reserve_bytes: context_reserve.0,
        memory_unknown: !found.is_measured,
        cuda_ordinal: found.cuda_ordinal,
    }
}

/// An allocation with its account and its processes.
pub(crate) fn allocation(
    allocation: &Allocation,
    account: Option<&AccountFiles>,
    processes: Vec<v1::Process>,
) -> v1::Allocation {
    let worst = allocation
        .grants
        .iter()
        .map(|grant| grant.enforcement)
        .max();
    let is_asleep_for = |cause| {
        allocation.suspension != SuspensionPhase::Running && allocation.suspension_cause == cause
    };
    let idle_after = allocation.idle_after.map(|idle| idle.as_millis());
    v1::Allocation {
        id: allocation.id.0.clone(),
        name: allocation.name.clone(),
        state: wire::state(&allocation.state).into(),
        holder: wire::holder(&allocation.state),
        created_at_ms: allocation.created.0,
        expires_at_ms: match allocation.state {
            AllocationPhase::Reserved { expires } => Some(expires.0),
            _ => None,
        },
        grants: allocation
            .grants
            .iter()
            .map(|of| grant(of, account))
            .collect(),
        processes,
        account_dir: account
            .map(|a| a.folder().display().to_string())
            .unwrap_or_default(),
        enforcement: wire::enforcement(worst.unwrap_or_default()).into(),
        idempotency_key: allocation.key.clone(),
        suspension: wire::suspension(allocation.suspension).into(),
        called_in: is_asleep_for(SuspensionCause::Guarantee),
        idle: is_asleep_for(SuspensionCause::Idle),
        waits_to_wake: allocation.suspension == SuspensionPhase::Suspended
            && is_asleep_for(SuspensionCause::Idle)
            && account.is_some_and(AccountFiles::is_called),
        suspend_when_idle_ms: idle_after.map_or(0, |idle| u64::try_from(idle).unwrap_or(u64::MAX)),
        burst_weight_thousandths: Some(allocation.terms.weight.thousandths()),
        burst_priority: Some(allocation.terms.priority),
    }
}

fn grant(grant: &CardGrant, account: Option<&AccountFiles>) -> v1::Grant {
    let used = account
        .map(|account| account.used(grant.card))
        .unwrap_or_default();
    v1::Grant {
        card: grant.card.to_string(),
        limit_bytes: grant.limit.0,
        guaranteed_bytes: grant.guaranteed().0,
        ceiling_bytes: grant.ceiling().0,
        used_bytes: used.claimed.plus(grant.overhead).0,
        claimed_bytes: used.claimed.0,
        overhead_bytes: grant.overhead.0,
        context_bytes: used.reserve.0,
        // Programs record their peak when they charge; overhead that came later is not in it.
        peak_bytes: used.peak.max(used.claimed.plus(grant.overhead)).0,
        denied_count: used.denied,
        denied_bytes: used.denied_bytes.0,
        nvml_bytes: grant.nvml.0,
        enforcement: wire::enforcement(grant.enforcement).into(),
        last_denied_bytes: used.last_denied.0,
        denied_by_api: ApiFamily::ALL
            .iter()
            .zip(used.denied_by)
            .map(|(api, count)| (api.word().to_owned(), count))
            .collect(),
        module_bytes: used.modules.0,
    }
}

/// A process with its use of each card.
pub(crate) fn process(process: ProcessId, uses: Vec<v1::ProcessUse>) -> v1::Process {
    v1::Process {
        pid: process.pid,
        name: procfs::name(process.pid),
        uses,
    }
}
