//! Queues in numbers.

use apportion_policy::amounts::ResourceKind;
use apportion_policy::share::{QueueShare, ResourceShare};
use serde::Serialize;

use super::decided_cluster::DecidedCluster;
use super::formatting;

/// A queue in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct QueueView {
    pub(crate) queue: String,
    pub(crate) resources: Vec<ResourceView>,
}

/// One resource of a queue; -1 is unlimited. CPU is milli-CPU, memory bytes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ResourceView {
    pub(crate) resource: &'static str,
    pub(crate) quota: f64,
    pub(crate) limit: f64,
    pub(crate) allocated: f64,
    pub(crate) allocated_non_preemptible: f64,
    pub(crate) requested: f64,
    pub(crate) fair_share: f64,
    /// Past usage, as a part of what was available; left out if it does not count.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) usage: f64,
    /// What the limits of pods add up to, and may add up to; left out if that is not bounded.
    #[serde(flatten)]
    pub(crate) limits: Option<LimitsView>,
    #[serde(skip)]
    pub(crate) message: String,
}

/// The limits of a queue's pods, in cards.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LimitsView {
    pub(crate) burst_limit: f64,
    pub(crate) allocated_limits: f64,
}

/// A queue and those above it, in numbers.
pub(crate) fn with_ancestors(decided: &DecidedCluster<'_>, name: &str) -> Vec<QueueView> {
    let found = decided.queues.find(name).into_iter();
    let path = found.flat_map(|queue| decided.queues.upward(queue));
    path.map(|queue| view(decided, queue)).collect()
}

/// All queues, in numbers.
pub(crate) fn all(decided: &DecidedCluster<'_>) -> Vec<QueueView> {
    (0..decided.queues.all().len())
        .map(|queue| view(decided, queue))
        .collect()
}

fn view(decided: &DecidedCluster<'_>, queue: usize) -> QueueView {
    let queue = decided.queues.get(queue);
    QueueView {
        queue: queue.uid.clone(),
        resources: [ResourceKind::Gpu, ResourceKind::Cpu, ResourceKind::Memory]
            .map(|resource| resource_view(resource, queue.of(resource), limits(resource, queue)))
            .to_vec(),
    }
}

fn limits(resource: ResourceKind, queue: &QueueShare) -> Option<LimitsView> {
    let burst_limit = queue.burst_limit.filter(|_| resource == ResourceKind::Gpu);
    burst_limit.map(|burst_limit| LimitsView {
        burst_limit,
        allocated_limits: queue.limits(),
    })
}

fn resource_view(
    resource: ResourceKind,
    share: &ResourceShare,
    limits: Option<LimitsView>,
) -> ResourceView {
    let amount = |number| formatting::amount(resource, number);
    ResourceView {
        resource: formatting::name(resource),
        quota: share.deserved,
        limit: share.limit,
        allocated: share.allocated,
        allocated_non_preemptible: share.non_preemptible,
        requested: share.request,
        fair_share: share.fair,
        usage: share.usage,
        message: format!(
            "quota {}, limit {}, allocated {} ({} non-preemptible), requested {}, fair share {}{}{}",
            amount(share.deserved),
            amount(share.limit),
            amount(share.allocated),
            amount(share.non_preemptible),
            amount(share.request),
            amount(share.fair),
            before(share.usage),
            bursts(limits.as_ref())
        ),
        limits,
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(part: &f64) -> bool {
    *part == 0.0
}

/// What the limits of pods add up to, where that is bounded.
fn bursts(limits: Option<&LimitsView>) -> String {
    let amount = |number| formatting::amount(ResourceKind::Gpu, number);
    limits.map_or_else(String::new, |limits| {
        format!(
            ", burst limit {}, limits of pods {}",
            amount(limits.burst_limit),
            amount(limits.allocated_limits)
        )
    })
}

/// Past usage, which lowers a queue's fair share, or raises it if others used more.
fn before(usage: f64) -> String {
    if is_zero(&usage) {
        String::new()
    } else {
        format!(", past usage {:.1} %", usage * 100.0)
    }
}
