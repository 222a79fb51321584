//! Which of two sibling queues is served first.
//!
//! The first difference decides: holding less than the fair share, staying within the quota with the next job,
//! priority, being allowed to hold anything at all, the dominant share with the job (and without the victims
//! already taken), the dominant share without it, being allowed to hold less, age, name.

use std::cmp::Ordering;

use crate::amounts::{ResourceAmounts, ResourceKind};
use crate::share::QueueShare;

/// What a queue would do next.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueChange {
    /// What its next job wants.
    pub job: ResourceAmounts,
    /// What the victims chosen from it hold.
    pub victims: ResourceAmounts,
}

/// Compares two queues; the lesser is served first.
#[must_use]
pub fn compare(
    left: (&QueueShare, QueueChange),
    right: (&QueueShare, QueueChange),
    total: ResourceAmounts,
) -> Ordering {
    let ((l, l_next), (r, r_next)) = (left, right);
    let with_job = |queue: &QueueShare, next: QueueChange| {
        queue.dominant_share(next.job.minus(next.victims), total)
    };
    let alone = |queue: &QueueShare| queue.dominant_share(ResourceAmounts::default(), total);
    l.is_over_utilized()
        .cmp(&r.is_over_utilized())
        .then_with(|| r.deserves(r_next.job).cmp(&l.deserves(l_next.job)))
        .then_with(|| r.priority.cmp(&l.priority))
        .then_with(|| lacks_share(l, l_next.job).cmp(&lacks_share(r, r_next.job)))
        .then_with(|| with_job(l, l_next).total_cmp(&with_job(r, r_next)))
        .then_with(|| alone(l).total_cmp(&alone(r)))
        .then_with(|| smaller(l.allocatable(), r.allocatable()))
        .then_with(|| l.created.cmp(&r.created))
        .then_with(|| l.uid.cmp(&r.uid))
}

/// Whether it would hold a resource of which it may hold nothing.
fn lacks_share(queue: &QueueShare, job: ResourceAmounts) -> bool {
    let holds = queue.allocated().plus(job);
    ResourceKind::ALL
        .into_iter()
        .any(|resource| queue.of(resource).allocatable() == 0.0 && holds[resource] > 0.0)
}

/// Orders by what is smaller in something and larger in nothing.
fn smaller(left: ResourceAmounts, right: ResourceAmounts) -> Ordering {
    match (left.within(right), right.within(left)) {
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (true, true) | (false, false) => Ordering::Equal,
    }
}
