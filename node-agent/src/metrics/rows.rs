//! The metrics: one row each, from which what is served, the README's table and the tests are made.
//! Names and base units are Prometheus'; every row says in one sentence what it counts.

use std::collections::BTreeMap;

use apportion_abi::CardUuid;
use apportion_ledger::{Fault, NoticeKind, Refusal};
use apportion_proto::v1;
use prometheus_client::metrics::histogram::Histogram;

use super::facts::{self, Facts, Share, ShareName};

/// One metric.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    of: Of,
}

/// Whether it can fall, or is spread over buckets.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Gauge,
    Counter,
    Histogram,
}

/// Of what there is a series.
enum Of {
    /// The node.
    Node(fn(&Facts) -> f64),
    /// Each card that says it.
    Card(fn(&v1::Card) -> Option<f64>),
    /// Each share of a card.
    Share(fn(&Share) -> f64),
    /// Each share of a card and each value of one label more.
    ShareBy(&'static str, fn(&Share) -> Vec<(&'static str, f64)>),
    /// Whatever the labels say.
    Labels(&'static [&'static str], fn(&Facts) -> Vec<Sample>),
    /// Each value of one label, spread over buckets.
    Spread(&'static str, fn(&Facts) -> &Spread),
}

/// Histograms by the value of their label.
pub(super) type Spread = BTreeMap<&'static str, Histogram>;

/// The values of the labels, and the number.
pub(super) type Sample = (Vec<String>, f64);

const CARD_LABELS: [&str; 1] = ["gpu_uuid"];
const SHARE_LABELS: [&str; 4] = ["namespace", "pod", "container", "gpu_uuid"];

impl Row {
    pub(super) fn labels(&self) -> Vec<&'static str> {
        match self.of {
            Of::Node(_) => Vec::new(),
            Of::Card(_) => CARD_LABELS.to_vec(),
            Of::Share(_) => SHARE_LABELS.to_vec(),
            Of::ShareBy(label, _) => [&SHARE_LABELS[..], &[label]].concat(),
            Of::Labels(labels, _) => labels.to_vec(),
            Of::Spread(label, _) => vec![label],
        }
    }

    pub(super) fn samples(&self, facts: &Facts) -> Vec<Sample> {
        match self.of {
            Of::Node(value) => vec![(Vec::new(), value(facts))],
            Of::Card(value) => {
                let of = |card: &v1::Card| Some((vec![card.uuid.clone()], value(card)?));
                facts.view.list.cards.iter().filter_map(of).collect()
            }
            Of::Share(value) => {
                let of = |(name, share): &(ShareName, Share)| (labels(name), value(share));
                facts.shares.iter().map(of).collect()
            }
            Of::ShareBy(_, values) => facts
                .shares
                .iter()
                .flat_map(|of| each(of, values))
                .collect(),
            Of::Labels(_, samples) => samples(facts),
            Of::Spread(..) => Vec::new(),
        }
    }

    /// What is spread over buckets, for a row of that kind.
    pub(super) fn spread<'a>(&self, facts: &'a Facts) -> Option<&'a Spread> {
        match self.of {
            Of::Spread(_, spread) => Some(spread(facts)),
            Of::Node(_) | Of::Card(_) | Of::Share(_) | Of::ShareBy(..) | Of::Labels(..) => None,
        }
    }
}

fn labels(name: &ShareName) -> Vec<String> {
    let of = &name.container;
    let names = [&of.namespace, &of.pod, &of.container, &name.gpu_uuid];
    names.map(Clone::clone).to_vec()
}

fn each(
    (name, share): &(ShareName, Share),
    values: fn(&Share) -> Vec<(&'static str, f64)>,
) -> Vec<Sample> {
    let of = |(word, value): (&str, f64)| {
        let mut labels = labels(name);
        labels.push(word.to_owned());
        (labels, value)
    };
    values(share).into_iter().map(of).collect()
}

/// How many series one share has.
pub(super) fn per_share() -> usize {
    let of = |row: &Row| match row.of {
        Of::Share(_) => 1,
        Of::ShareBy(_, values) => values(&Share::default()).len(),
        Of::Node(_) | Of::Card(_) | Of::Labels(..) | Of::Spread(..) => 0,
    };
    ROWS.iter().map(of).sum()
}

macro_rules! rows {
    ($($kind:ident $name:literal $help:literal $of:expr;)*) => {
        &[$(Row { name: $name, kind: Kind::$kind, help: $help, of: $of }),*]
    };
}

pub(super) const ROWS: &[Row] = rows! {
    Gauge "apportion_build_info" "The agent's version"
        Of::Labels(&["version"], |f| vec![(vec![node(f).agent_version], 1.0)]);
    Gauge "apportion_node_info" "The driver below the agent, and what is done to offenders"
        Of::Labels(&["driver", "simulated", "policy"], node_info);
    Gauge "apportion_ready" "Whether the driver answers and requests are served"
        Of::Node(|f| flag(f.view.is_ready));
    Gauge "apportion_snapshot_age_seconds" "Age of the sample below these numbers"
        Of::Node(|f| f.view.sampled.map_or(f64::INFINITY, |at| at.elapsed().as_secs_f64()));
    Gauge "apportion_ledger_generation" "Changes of the ledger" Of::Node(|f| number(node(f).generation));
    Gauge "apportion_adopted_grants" "Allocations taken over from an earlier agent"
        Of::Node(|f| number(f.view.counts.adopted));
    Counter "apportion_grants_total" "Requests for an allocation, by result and by the reason of a refusal"
        Of::Labels(&["result", "reason"], grants);
    Counter "apportion_offences_total" "Processes found exceeding or bypassing, by kind"
        Of::Labels(&["kind"], offences);
    Gauge "apportion_slots" "Slots that the kubelet hands to containers, by how far they have come"
        Of::Labels(&["state"], slots);
    Gauge "apportion_kubelet_registered" "Whether the kubelet knows who serves the resource"
        Of::Labels(&["resource"], registered);
    Histogram "apportion_prestart_duration_seconds" "How long containers waited for their grants before they started or did not"
        Of::Spread("result", |f| &f.view.counts.kubelet.starts);
    Counter "apportion_identity_lookups_total" "Looks at the kubelet for who holds which slot, by what it said and what came of it"
        Of::Labels(&["source", "result"], lookups);
    Gauge "apportion_nri_connected" "Whether the container runtime asks before it creates a container"
        Of::Labels(&[], nri_connected);
    Counter "apportion_nri_verdicts_total" "Containers judged for the runtime, by what was done and why"
        Of::Labels(&["verdict", "reason"], nri_verdicts);
    Counter "apportion_series_dropped_total" "Series left out of scrapes because there were too many"
        Of::Node(|f| number(f.dropped));
    Gauge "apportion_gpu_info" "The card's product and its position"
        Of::Labels(&["gpu_uuid", "model", "index"], gpu_info);
    Gauge "apportion_gpu_healthy" "Whether the card can be given out"
        Of::Card(|c| Some(flag(c.health() == v1::CardHealth::Healthy)));
    Counter "apportion_gpu_errors_total" "Errors that the card reported, by what they mean for it"
        Of::Labels(&["gpu_uuid", "fault"], faults);
    Gauge "apportion_gpu_memory_total_bytes" "Physical memory of the card" Of::Card(|c| some(c.total_bytes));
    Gauge "apportion_gpu_memory_reserved_bytes" "Memory that the driver keeps"
        Of::Card(|c| some(c.reserved_bytes));
    Gauge "apportion_gpu_memory_allocatable_bytes" "Memory that can be given"
        Of::Card(|c| some(c.allocatable_bytes));
    Gauge "apportion_gpu_memory_granted_bytes" "Sum of the limits on the card"
        Of::Card(|c| some(c.granted_bytes));
    Gauge "apportion_gpu_memory_free_bytes" "Memory that can still be given" Of::Card(|c| some(c.free_bytes));
    Gauge "apportion_gpu_memory_used_bytes" "Memory in use, as the driver says" Of::Card(|c| some(c.used_bytes));
    Gauge "apportion_gpu_memory_unmanaged_bytes" "Memory of processes without an allocation"
        Of::Card(|c| some(c.unmanaged_bytes));
    Gauge "apportion_gpu_context_reserve_bytes" "Memory that a process's first context is charged"
        Of::Card(|c| some(c.context_reserve_bytes));
    Gauge "apportion_gpu_utilisation_ratio" "Share of time in which a kernel ran"
        Of::Card(|c| c.utilisation_percent.map(|percent| f64::from(percent) / 100.0));
    Gauge "apportion_reconcile_drift_bytes" "Use of the card that neither accounts nor unmanaged processes explain"
        Of::Labels(&CARD_LABELS, drift);
    Gauge "apportion_container_info" "The allocation of the container, and its pod"
        Of::Labels(&["namespace", "pod", "container", "allocation_id", "pod_uid"], container_info);
    Gauge "apportion_container_processes" "Live processes of the container"
        Of::Labels(&["namespace", "pod", "container"], processes);
    Gauge "apportion_container_memory_limit_bytes" "The most that its processes may take"
        Of::Share(|s| number(s.limit));
    Gauge "apportion_container_memory_used_bytes" "Used, by who says so"
        Of::ShareBy("source", |s| vec![("account", number(s.used)), ("nvml", number(s.nvml))]);
    Gauge "apportion_container_memory_peak_bytes" "The most that was ever used" Of::Share(|s| number(s.peak));
    Gauge "apportion_container_memory_context_bytes" "Claimed for contexts" Of::Share(|s| number(s.context));
    Gauge "apportion_container_memory_overhead_bytes" "Taken by the driver beyond the claims"
        Of::Share(|s| number(s.overhead));
    Counter "apportion_container_memory_denied_total" "Charges that were refused" Of::Share(|s| number(s.denied));
    Counter "apportion_container_memory_denied_bytes_total" "Bytes of the charges that were refused"
        Of::Share(|s| number(s.denied_bytes));
    Gauge "apportion_container_enforcement_state" "Whether the limit is being kept"
        Of::ShareBy("state", states);
};

const ENFORCEMENT: [(&str, v1::EnforcementState); 6] = [
    ("pending", v1::EnforcementState::Pending),
    ("whole", v1::EnforcementState::Whole),
    ("attached", v1::EnforcementState::Attached),
    ("missing", v1::EnforcementState::Missing),
    ("bypassed", v1::EnforcementState::Bypassed),
    ("overlimit", v1::EnforcementState::Overlimit),
];

const OFFENCES: [(&str, NoticeKind); 5] = [
    ("bypassed", NoticeKind::Bypassed),
    ("overlimit", NoticeKind::Overlimit),
    ("ungranted", NoticeKind::Ungranted),
    ("killed", NoticeKind::Killed),
    ("evicted", NoticeKind::Evicted),
];

/// Why a request for an allocation was refused, in one of few words.
pub(crate) fn reason(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Shortfall(_) => "shortfall",
        Refusal::Malformed(_) => "malformed",
        Refusal::UnknownCard(_) => "unknown_card",
        Refusal::Unhealthy(_) => "unhealthy",
        Refusal::Sizeless(_) => "sizeless",
        Refusal::UnknownAllocation(_) => "unknown_allocation",
        Refusal::KeyReused(_) => "key_reused",
        Refusal::Committed(_) => "committed",
        Refusal::Draining(_) => "draining",
        Refusal::NotGranted { .. } => "not_granted",
        Refusal::Whole(_) => "whole",
    }
}

/// The reason where the agent could not carry out what the ledger had granted.
pub(crate) const FAILED: &str = "failed";

fn node(facts: &Facts) -> v1::Node {
    facts.view.list.node.clone().unwrap_or_default()
}

fn node_info(facts: &Facts) -> Vec<Sample> {
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

fn grants(facts: &Facts) -> Vec<Sample> {
    let counts = &facts.view.counts;
    let labels = |result: &str, reason: &str| vec![result.to_owned(), reason.to_owned()];
    let mut refused = BTreeMap::from([("shortfall", 0), (FAILED, 0)]);
    refused.extend(&counts.refused);
    let refused = refused.into_iter();
    let mut samples = vec![(labels("accepted", ""), number(counts.accepted))];
    samples.extend(refused.map(|(reason, count)| (labels("refused", reason), number(count))));
    samples
}

fn offences(facts: &Facts) -> Vec<Sample> {
    let notices = &facts.view.counts.notices;
    let of = |(word, kind): &(&str, NoticeKind)| {
        let count = notices.get(kind).copied().unwrap_or_default();
        (vec![(*word).to_owned()], number(count))
    };
    OFFENCES.iter().map(of).collect()
}

fn slots(facts: &Facts) -> Vec<Sample> {
    let slots = facts.view.counts.slots.iter();
    let of = |(state, count): (&&str, &usize)| (vec![(*state).to_owned()], count_of(*count));
    slots.map(of).collect()
}

fn registered(facts: &Facts) -> Vec<Sample> {
    let known = facts.view.counts.kubelet.registered.iter();
    let of = |(resource, is): (&&str, &bool)| (vec![(*resource).to_owned()], flag(*is));
    known.map(of).collect()
}

fn lookups(facts: &Facts) -> Vec<Sample> {
    let looks = facts.view.counts.kubelet.looks.iter();
    let of = |((source, result), count): (&(&str, &str), &u64)| {
        let labels = vec![(*source).to_owned(), (*result).to_owned()];
        (labels, number(*count))
    };
    looks.map(of).collect()
}

fn nri_connected(facts: &Facts) -> Vec<Sample> {
    let lock = facts.view.counts.second_lock.iter();
    lock.map(|lock| (Vec::new(), flag(lock.is_connected)))
        .collect()
}

fn nri_verdicts(facts: &Facts) -> Vec<Sample> {
    let lock = facts.view.counts.second_lock.iter();
    let of = |((verdict, reason), count): (&(&str, &str), &u64)| {
        (
            vec![(*verdict).to_owned(), (*reason).to_owned()],
            number(*count),
        )
    };
    lock.flat_map(|lock| lock.verdicts.iter().map(of)).collect()
}

fn faults(facts: &Facts) -> Vec<Sample> {
    let faults = facts.view.counts.faults.iter();
    let of = |((card, fault), count): (&(CardUuid, Fault), &u64)| {
        (
            vec![card.to_string(), fault.word().to_owned()],
            number(*count),
        )
    };
    faults.map(of).collect()
}

fn gpu_info(facts: &Facts) -> Vec<Sample> {
    let labels = |card: &v1::Card| {
        vec![
            card.uuid.clone(),
            card.model.clone(),
            card.index.to_string(),
        ]
    };
    let cards = facts.view.list.cards.iter();
    cards.map(|card| (labels(card), 1.0)).collect()
}

/// What the driver says is used, less what the accounts and the processes of no allocation explain.
/// Negative where accounts hold more than is used: charges in flight, contexts that cost less.
fn drift(facts: &Facts) -> Vec<Sample> {
    // Of a card that does not say what is used, it is not known.
    let cards = (facts.view.list.cards.iter()).filter(|card| !card.memory_unknown);
    let of = |card: &v1::Card| {
        let shares = facts
            .shares
            .iter()
            .filter(|(name, _)| name.gpu_uuid == card.uuid);
        let charged: u64 = shares.map(|(_, share)| share.used).sum();
        let explained = number(charged) + number(card.unmanaged_bytes);
        (vec![card.uuid.clone()], number(card.used_bytes) - explained)
    };
    cards.map(of).collect()
}

fn container_info(facts: &Facts) -> Vec<Sample> {
    let of = |allocation: &v1::Allocation| {
        let name = facts::container(allocation);
        let uid = match allocation
            .holder
            .as_ref()
            .and_then(|holder| holder.kind.as_ref())
        {
            Some(v1::holder::Kind::PodUid(uid)) => uid.clone(),
            Some(v1::holder::Kind::Pid(_)) | None => String::new(),
        };
        let id = allocation.id.clone();
        (vec![name.namespace, name.pod, name.container, id, uid], 1.0)
    };
    facts.shown().map(of).collect()
}

fn processes(facts: &Facts) -> Vec<Sample> {
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for allocation in facts.shown() {
        *counts.entry(facts::container(allocation)).or_default() += allocation.processes.len();
    }
    let of = |(name, count): (facts::ContainerName, usize)| {
        (
            vec![name.namespace, name.pod, name.container],
            count_of(count),
        )
    };
    counts.into_iter().map(of).collect()
}

fn states(share: &Share) -> Vec<(&'static str, f64)> {
    ENFORCEMENT
        .map(|(word, state)| (word, flag(share.states.contains(&state))))
        .to_vec()
}

fn some(bytes: u64) -> Option<f64> {
    Some(number(bytes))
}

/// Exact below 2^53: 8 PiB.
fn number(number: u64) -> f64 {
    number as f64
}

fn count_of(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn flag(flag: bool) -> f64 {
    f64::from(u8::from(flag))
}
