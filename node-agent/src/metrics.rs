//! The latest view as Prometheus metrics. A scrape asks neither the driver nor the ledger, and every
//! series is of a card that is there or an allocation that lives, so their number is bounded.

use std::fmt::Write;
use std::sync::atomic::AtomicU64;

use apportion_ledger::NoticeKind;
use apportion_proto::v1;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::view::View;

type Labels = Vec<(&'static str, String)>;
type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;
type Counters = Family<Labels, Counter>;

/// A gauge of each card: its name, what it says, and its value.
type CardRow = (&'static str, &'static str, fn(&v1::Card) -> Option<f64>);

const CARD_ROWS: &[CardRow] = &[
    (
        "gpu_memory_total_bytes",
        "Physical memory of the card",
        |c| bytes(c.total_bytes),
    ),
    (
        "gpu_memory_reserved_bytes",
        "Memory that the driver keeps",
        |c| bytes(c.reserved_bytes),
    ),
    (
        "gpu_memory_allocatable_bytes",
        "Memory that can be given",
        |c| bytes(c.allocatable_bytes),
    ),
    (
        "gpu_memory_granted_bytes",
        "Sum of the limits on the card",
        |c| bytes(c.granted_bytes),
    ),
    (
        "gpu_memory_free_bytes",
        "Memory that can still be given",
        |c| bytes(c.free_bytes),
    ),
    (
        "gpu_memory_used_bytes",
        "Memory in use, as the driver says",
        |c| bytes(c.used_bytes),
    ),
    (
        "gpu_memory_unmanaged_bytes",
        "Memory of processes without an allocation",
        |c| bytes(c.unmanaged_bytes),
    ),
    (
        "gpu_context_reserve_bytes",
        "Memory that a process's first context is charged",
        |c| bytes(c.context_reserve_bytes),
    ),
    ("gpu_healthy", "Whether the card can be given out", |c| {
        flag(c.health() == v1::CardHealth::Healthy)
    }),
    (
        "gpu_utilisation_ratio",
        "Share of time in which a kernel ran",
        |c| {
            c.utilisation_percent
                .map(|percent| f64::from(percent) / 100.0)
        },
    ),
];

/// A gauge of each allocation on each of its cards.
type GrantRow = (&'static str, &'static str, fn(&v1::Grant) -> u64);

const GRANT_ROWS: &[GrantRow] = &[
    (
        "allocation_memory_limit_bytes",
        "The most that its processes may take",
        |g| g.limit_bytes,
    ),
    (
        "allocation_memory_overhead_bytes",
        "Taken by the driver beyond the claims",
        |g| g.overhead_bytes,
    ),
    (
        "allocation_memory_context_bytes",
        "Claimed for contexts",
        |g| g.context_bytes,
    ),
    (
        "allocation_memory_peak_bytes",
        "The most that was ever used",
        |g| g.peak_bytes,
    ),
];

/// A counter of each allocation on each of its cards; the encoder adds `_total`.
const GRANT_COUNTERS: &[GrantRow] = &[
    (
        "allocation_memory_denied",
        "Charges that were refused",
        |g| g.denied_count,
    ),
    (
        "allocation_memory_denied_bytes",
        "Bytes of the charges that were refused",
        |g| g.denied_bytes,
    ),
];

const ENFORCEMENT: &[(&str, v1::EnforcementState)] = &[
    ("pending", v1::EnforcementState::Pending),
    ("attached", v1::EnforcementState::Attached),
    ("missing", v1::EnforcementState::Missing),
    ("bypassed", v1::EnforcementState::Bypassed),
    ("overlimit", v1::EnforcementState::Overlimit),
];

const OFFENCES: &[(&str, NoticeKind)] = &[
    ("bypassed", NoticeKind::Bypassed),
    ("overlimit", NoticeKind::Overlimit),
    ("ungranted", NoticeKind::Ungranted),
    ("killed", NoticeKind::Killed),
];

/// The view in the OpenMetrics text format.
pub(crate) fn render(view: &View) -> String {
    let mut registry = Registry::with_prefix("apportion");
    let nothing = v1::Node::default();
    node(
        &mut registry,
        view,
        view.list.node.as_ref().unwrap_or(&nothing),
    );
    for (name, help, value) in CARD_ROWS {
        let family = gauges(&mut registry, name, help);
        for card in &view.list.cards {
            let labels = vec![("gpu_uuid", card.uuid.clone())];
            if let Some(value) = value(card) {
                set(&family, labels, value);
            }
        }
    }
    allocations(&mut registry, &view.list.allocations);
    let mut text = String::new();
    if let Err(error) = encode(&mut text, &registry) {
        // Writing to a string fails only if a metric is malformed; a scraper then sees a parse error.
        let _ = write!(text, "# {error}");
    }
    text
}

fn node(registry: &mut Registry, view: &View, node: &v1::Node) {
    let info = gauges(registry, "node_info", "The agent and the driver below it");
    let labels = vec![
        ("version", node.agent_version.clone()),
        ("driver", node.driver_version.clone()),
        ("simulated", node.simulated.to_string()),
    ];
    set(&info, labels, 1.0);
    let sampled = view.sampled;
    let age = sampled.map_or(f64::INFINITY, |sampled| sampled.elapsed().as_secs_f64());
    let adopted = view.counts.adopted as f64;
    for (name, help, value) in [
        (
            "snapshot_age_seconds",
            "Age of the sample below these numbers",
            age,
        ),
        (
            "ledger_generation",
            "Changes of the ledger",
            node.generation as f64,
        ),
        (
            "adopted_allocations",
            "Allocations taken over from an earlier agent",
            adopted,
        ),
    ] {
        set(&gauges(registry, name, help), vec![], value);
    }
    let results = counters(
        registry,
        "allocations",
        "Requests for an allocation, by result",
    );
    for (result, count) in [
        ("accepted", view.counts.accepted),
        ("refused", view.counts.refused),
    ] {
        results
            .get_or_create(&vec![("result", result.to_owned())])
            .inc_by(count);
    }
    let offences = counters(
        registry,
        "offences",
        "Processes found exceeding or bypassing, by kind",
    );
    for (kind, notice) in OFFENCES {
        let count = view.counts.notices.get(notice).copied().unwrap_or_default();
        offences
            .get_or_create(&vec![("kind", (*kind).to_owned())])
            .inc_by(count);
    }
}

fn allocations(registry: &mut Registry, allocations: &[v1::Allocation]) {
    let each = || {
        allocations
            .iter()
            .flat_map(|a| a.grants.iter().map(move |grant| (a, grant)))
    };
    for (name, help, value) in GRANT_ROWS {
        let family = gauges(registry, name, help);
        each().for_each(|(a, grant)| set(&family, labels(a, grant), value(grant) as f64));
    }
    for (name, help, value) in GRANT_COUNTERS {
        let family = counters(registry, name, help);
        each().for_each(|(a, grant)| {
            family.get_or_create(&labels(a, grant)).inc_by(value(grant));
        });
    }
    let used = gauges(
        registry,
        "allocation_memory_used_bytes",
        "Used, by who says so",
    );
    let states = gauges(
        registry,
        "allocation_enforcement_state",
        "Whether the limit is being kept",
    );
    let processes = gauges(
        registry,
        "allocation_processes",
        "Live processes of the allocation",
    );
    for (allocation, grant) in each() {
        for (source, bytes) in [("limiter", grant.used_bytes), ("nvml", grant.nvml_bytes)] {
            let mut labels = labels(allocation, grant);
            labels.push(("source", source.to_owned()));
            set(&used, labels, bytes as f64);
        }
        for (name, state) in ENFORCEMENT {
            let mut labels = labels(allocation, grant);
            labels.push(("state", (*name).to_owned()));
            set(
                &states,
                labels,
                f64::from(u8::from(grant.enforcement() == *state)),
            );
        }
    }
    for allocation in allocations {
        let count = u32::try_from(allocation.processes.len()).unwrap_or(u32::MAX);
        set(&processes, names(allocation), f64::from(count));
    }
}

/// Names are people's and need not be unique; the id is.
fn names(allocation: &v1::Allocation) -> Labels {
    vec![
        ("allocation", allocation.name.clone()),
        ("allocation_id", allocation.id.clone()),
    ]
}

fn labels(allocation: &v1::Allocation, grant: &v1::Grant) -> Labels {
    let mut labels = names(allocation);
    labels.push(("gpu_uuid", grant.card.clone()));
    labels
}

fn set(family: &Gauges, labels: Labels, value: f64) {
    family.get_or_create(&labels).set(value);
}

fn gauges(registry: &mut Registry, name: &str, help: &str) -> Gauges {
    let family = Gauges::default();
    registry.register(name, help, family.clone());
    family
}

fn counters(registry: &mut Registry, name: &str, help: &str) -> Counters {
    let family = Counters::default();
    registry.register(name, help, family.clone());
    family
}

fn bytes(bytes: u64) -> Option<f64> {
    // Exact below 8 PiB.
    Some(bytes as f64)
}

fn flag(flag: bool) -> Option<f64> {
    Some(f64::from(u8::from(flag)))
}
