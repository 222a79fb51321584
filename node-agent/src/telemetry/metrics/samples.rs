//! Computes the values and labels of the rows. Labels come from fixed sets or name a card or a container. They are
//! never a pid or free text.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::CardUuid;
use apportion_abi::account::ApiFamily;
use apportion_ledger::{AllocationRefusal, NoticeKind, XidSeverity};
use apportion_proto::v1;

use crate::telemetry::call_stats;
use crate::telemetry::idle_stats;
use crate::telemetry::suspension::suspension_cause;
use crate::telemetry::suspension_stats::{ACTIONS, RESULTS};

use super::snapshot::{self, ScrapeSnapshot, ShareMetrics};

/// Label values and the number.
pub(super) type Sample = (Vec<String>, f64);

const ENFORCEMENT: [(&str, v1::EnforcementState); 6] = [
    ("pending", v1::EnforcementState::Pending),
    ("whole", v1::EnforcementState::Whole),
    ("attached", v1::EnforcementState::Attached),
    ("missing", v1::EnforcementState::Missing),
    ("bypassed", v1::EnforcementState::Bypassed),
    ("overlimit", v1::EnforcementState::Overlimit),
];

/// The recovery actions, by the values of `nvmlDeviceGpuRecoveryAction_t`.
const RECOVERIES: [(&str, u64); 5] = [
    ("none", 0),
    ("gpu_reset", 1),
    ("node_reboot", 2),
    ("drain_p2p", 3),
    ("drain_and_reset", 4),
];

/// The exported throttle reasons, by the bits of `nvmlClocksEventReasons`. Idling and configured clocks also set
/// bits, but are no problem.
const THROTTLES: [(&str, u64); 5] = [
    ("power_cap", 0x4),
    ("hardware", 0x8),
    ("thermal", 0x20),
    ("hardware_thermal", 0x40),
    ("power_brake", 0x80),
];

const OFFENCES: [(&str, NoticeKind); 5] = [
    ("bypassed", NoticeKind::Bypassed),
    ("overlimit", NoticeKind::Overlimit),
    ("ungranted", NoticeKind::Ungranted),
    ("killed", NoticeKind::Killed),
    ("evicted", NoticeKind::Evicted),
];

/// The metric label for a refusal.
pub(crate) fn reason(refusal: &AllocationRefusal) -> &'static str {
    match refusal {
        AllocationRefusal::Shortfall(_) => "shortfall",
        AllocationRefusal::Malformed(_) => "malformed",
        AllocationRefusal::UnknownCard(_) => "unknown_card",
        AllocationRefusal::Unhealthy(_) => "unhealthy",
        AllocationRefusal::Sizeless(_) => "sizeless",
        AllocationRefusal::UnknownAllocation(_) => "unknown_allocation",
        AllocationRefusal::KeyReused(_) => "key_reused",
        AllocationRefusal::Committed(_) => "committed",
        AllocationRefusal::Draining(_) => "draining",
        AllocationRefusal::NotGranted { .. } => "not_granted",
        AllocationRefusal::Whole(_) => "whole",
        AllocationRefusal::OfPod(_) => "of_pod",
        AllocationRefusal::Uncommitted(_) => "uncommitted",
        AllocationRefusal::Suspended(_) | AllocationRefusal::CalledIn(_) => "suspended",
        AllocationRefusal::InTransition(_) => "in_transition",
        AllocationRefusal::Fixed(_) => "fixed",
        AllocationRefusal::LimitBelowRequest { .. } => "limit_below_request",
        AllocationRefusal::LimitAboveCard { .. } => "limit_above_card",
        AllocationRefusal::Overcommitted { .. } => "overcommitted",
    }
}

/// The label if the agent could not perform what the ledger had granted.
pub(crate) const FAILED: &str = "failed";

/// The label if a user's quota is used up.
pub(crate) const QUOTA: &str = "quota";

pub(super) fn node(facts: &ScrapeSnapshot) -> v1::Node {
    facts.view.list.node.clone().unwrap_or_default()
}

pub(super) fn node_info(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let node = node(facts);
    let policy = match node.policy() {
        v1::OffenderPolicy::Unspecified => "unknown",
        v1::OffenderPolicy::Observe => "observe",
        v1::OffenderPolicy::Kill => "kill",
        v1::OffenderPolicy::Evict => "evict",
    };
    let simulated = node.simulated.to_string();
    vec![(vec![node.driver_version, simulated, policy.to_owned()], 1.0)]
}

pub(super) fn grants(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let counts = &facts.view.counts;
    let labels = |result: &str, reason: &str| vec![result.to_owned(), reason.to_owned()];
    let mut refused = BTreeMap::from([("shortfall", 0), (FAILED, 0)]);
    refused.extend(&counts.refused);
    let refused = refused.into_iter();
    let mut samples = vec![(labels("accepted", ""), number(counts.accepted))];
    samples.extend(refused.map(|(reason, count)| (labels("refused", reason), number(count))));
    samples
}

/// The allocations that were restored from their accounts alone.
pub(super) fn orphaned(facts: &ScrapeSnapshot) -> f64 {
    let all = facts.view.list.allocations.iter();
    let orphans = all.filter(|of| of.idempotency_key.starts_with(crate::agent::ORPHAN));
    count_of(orphans.count())
}

pub(super) fn connections_dropped(facts: &ScrapeSnapshot) -> Vec<Sample> {
    facts
        .connections
        .iter()
        .copied()
        .map(|(listener, count): (&str, u64)| (vec![listener.to_owned()], number(count)))
        .collect()
}

pub(super) fn disagreements(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let mut kinds = BTreeMap::from([("unplaced", 0), ("no_whole_card", 0)]);
    kinds.extend(&facts.view.counts.disagreements);
    kinds
        .into_iter()
        .map(|(kind, count): (&str, u64)| (vec![kind.to_owned()], number(count)))
        .collect()
}

/// One series for each reason of each card that reports its throttle reasons.
pub(super) fn throttled(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let counts = facts.view.counts.throttled.iter();
    counts
        .flat_map(|(card, bits): (&CardUuid, &u64)| {
            THROTTLES.map(|(word, bit)| {
                (
                    vec![card.to_string(), word.to_owned()],
                    flag(bits & bit != 0),
                )
            })
        })
        .collect()
}

pub(super) fn denied(share: &ShareMetrics) -> Vec<(&'static str, f64)> {
    ApiFamily::ALL
        .map(|api| {
            let count = share.denied.get(api.word()).copied().unwrap_or_default();
            (api.word(), number(count))
        })
        .to_vec()
}

pub(super) fn offences(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let notices = &facts.view.counts.notices;
    OFFENCES
        .iter()
        .map(|(word, kind): &(&str, NoticeKind)| {
            let count = notices.get(kind).copied().unwrap_or_default();
            (vec![(*word).to_owned()], number(count))
        })
        .collect()
}

pub(super) fn slots(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let slots = facts.view.counts.slots.iter();
    slots
        .map(|(state, count): (&&str, &usize)| (vec![(*state).to_owned()], count_of(*count)))
        .collect()
}

pub(super) fn registered(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let known = facts.view.counts.kubelet.registered.iter();
    known
        .map(|(resource, is): (&&str, &bool)| (vec![(*resource).to_owned()], flag(*is)))
        .collect()
}

pub(super) fn lookups(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let polls = facts.view.counts.kubelet.polls.iter();
    polls
        .map(|((source, result), count): (&(&str, &str), &u64)| {
            let labels = vec![(*source).to_owned(), (*result).to_owned()];
            (labels, number(*count))
        })
        .collect()
}

pub(super) fn nri_connected(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let lock = facts.view.counts.nri.iter();
    lock.map(|lock| (Vec::new(), flag(lock.is_connected)))
        .collect()
}

pub(super) fn driver_limits_active(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let backend = node(facts).driver_limits;
    vec![(vec![backend.clone()], flag(!backend.is_empty()))]
}

pub(super) fn nri_verdicts(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let lock = facts.view.counts.nri.iter();
    lock.flat_map(|lock| {
        lock.verdicts.iter().map(|((verdict, reason), count)| {
            (
                vec![(*verdict).to_owned(), (*reason).to_owned()],
                number(*count),
            )
        })
    })
    .collect()
}

pub(super) fn faults(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let faults = facts.view.counts.faults.iter();
    faults
        .map(|((card, fault), count): (&(CardUuid, XidSeverity), &u64)| {
            (
                vec![card.to_string(), fault.word().to_owned()],
                number(*count),
            )
        })
        .collect()
}

/// One series of the card is 1 and the others are 0. An action of a newer driver is "other".
pub(super) fn recoveries(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let counts = facts.view.counts.recoveries.iter();
    counts
        .flat_map(|(card, action)| {
            let is_other = !RECOVERIES.iter().any(|(_, number)| number == action);
            let known = RECOVERIES.map(|(word, number)| (word, number == *action));
            let actions = known.into_iter().chain([("other", is_other)]);
            actions
                .map(|(word, is)| (vec![card.to_string(), word.to_owned()], flag(is)))
                .collect::<Vec<_>>()
        })
        .collect()
}

pub(super) fn cdi_enabled(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let known = facts.view.counts.has_cdi.iter();
    known.map(|has| (Vec::new(), flag(*has))).collect()
}

pub(super) fn gpu_info(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let cards = facts.view.list.cards.iter();
    cards
        .map(|card| {
            let labels = vec![
                card.uuid.clone(),
                card.model.clone(),
                card.index.to_string(),
            ];
            (labels, 1.0)
        })
        .collect()
}

/// What the driver reports as used, less what the accounts and unmanaged processes explain. Negative if accounts
/// charge more than is used: charges in flight, or contexts that cost less than their charge.
pub(super) fn drift(facts: &ScrapeSnapshot) -> Vec<Sample> {
    // A card that does not report its use has no drift.
    let cards = (facts.view.list.cards.iter()).filter(|card| !card.memory_unknown);
    cards
        .map(|card| {
            let shares = facts
                .shares
                .iter()
                .filter(|(name, _)| name.gpu_uuid == card.uuid);
            let charged: u64 = shares.map(|(_, share)| share.resident).sum();
            let explained = number(charged) + number(card.unmanaged_bytes);
            (vec![card.uuid.clone()], number(card.used_bytes) - explained)
        })
        .collect()
}

pub(super) fn container_info(facts: &ScrapeSnapshot) -> Vec<Sample> {
    // Two allocations for pods of the same name are one series.
    let all: BTreeSet<_> = facts.exported().map(pod_labels).collect();
    all.into_iter().map(|labels| (labels, 1.0)).collect()
}

fn pod_labels(allocation: &v1::Allocation) -> Vec<String> {
    let name = snapshot::container(allocation);
    let uid = match allocation
        .holder
        .as_ref()
        .and_then(|holder| holder.kind.as_ref())
    {
        Some(v1::holder::Kind::PodUid(uid)) => uid.clone(),
        Some(v1::holder::Kind::Claim(claim)) => claim
            .pods
            .first()
            .map(|pod| pod.uid.clone())
            .unwrap_or_default(),
        Some(v1::holder::Kind::Pid(_)) | None => String::new(),
    };
    vec![name.namespace, name.pod, name.container, uid]
}

pub(super) fn processes(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for allocation in facts.exported() {
        *counts.entry(snapshot::container(allocation)).or_default() += allocation.processes.len();
    }
    counts
        .into_iter()
        .map(|(name, count): (snapshot::ContainerLabels, usize)| {
            (
                vec![name.namespace, name.pod, name.container],
                count_of(count),
            )
        })
        .collect()
}

/// One series of each container: 1 while an allocation of it is suspended.
pub(super) fn suspended(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let mut all: BTreeMap<_, bool> = BTreeMap::new();
    for allocation in facts.exported() {
        let is_suspended = allocation.suspension() == v1::SuspensionState::Suspended;
        *all.entry(snapshot::container(allocation)).or_default() |= is_suspended;
    }
    all.into_iter()
        .map(|(name, is): (snapshot::ContainerLabels, bool)| {
            (vec![name.namespace, name.pod, name.container], flag(is))
        })
        .collect()
}

pub(super) fn guarantee_calls(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let calls = &facts.view.counts.calls;
    let of = |result: &'static str| (vec![result.to_owned()], number(calls.count_of(result)));
    call_stats::RESULTS.into_iter().map(of).collect()
}

/// The sum of a number of all suspended allocations, by who suspended them.
fn by_cause(facts: &ScrapeSnapshot, count: fn(&v1::Allocation) -> u64) -> Vec<Sample> {
    let all = facts.view.list.allocations.iter();
    let asleep: Vec<_> = all
        .filter(|of| of.suspension() == v1::SuspensionState::Suspended)
        .collect();
    let of = |cause: &str| {
        let those = asleep.iter().filter(|of| suspension_cause(of) == cause);
        (
            vec![cause.to_owned()],
            number(those.map(|of| count(of)).sum()),
        )
    };
    ["client", "guarantee", "idle", "scheduler"]
        .map(of)
        .to_vec()
}

pub(super) fn suspended_shares(facts: &ScrapeSnapshot) -> Vec<Sample> {
    by_cause(facts, |_| 1)
}

pub(super) fn suspended_bytes(facts: &ScrapeSnapshot) -> Vec<Sample> {
    by_cause(facts, |of| {
        let grants = of.grants.iter();
        grants
            .map(|grant| grant.claimed_bytes.saturating_sub(grant.nvml_bytes))
            .sum()
    })
}

pub(super) fn suspensions(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let counts = &facts.view.counts.suspensions;
    let of = |action: &'static str| {
        RESULTS.map(|result| {
            let count = number(counts.count_of(action, result));
            (vec![action.to_owned(), result.to_owned()], count)
        })
    };
    ACTIONS.into_iter().flat_map(of).collect()
}

pub(super) fn idle_suspensions(facts: &ScrapeSnapshot) -> Vec<Sample> {
    let counts = &facts.view.counts.idle;
    let of = |action: &'static str| {
        idle_stats::RESULTS.map(|result| {
            let count = number(counts.count_of(action, result));
            (vec![action.to_owned(), result.to_owned()], count)
        })
    };
    ACTIONS.into_iter().flat_map(of).collect()
}

pub(super) fn states(share: &ShareMetrics) -> Vec<(&'static str, f64)> {
    ENFORCEMENT
        .map(|(word, state)| (word, flag(share.states.contains(&state))))
        .to_vec()
}

pub(super) fn ratio(percent: u32) -> f64 {
    f64::from(percent) / 100.0
}

pub(super) fn some(bytes: u64) -> Option<f64> {
    Some(number(bytes))
}

/// Exact below 2^53, which is 8 PiB.
pub(super) fn number(number: u64) -> f64 {
    number as f64
}

pub(super) fn count_of(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

pub(super) fn flag(flag: bool) -> f64 {
    f64::from(u8::from(flag))
}
