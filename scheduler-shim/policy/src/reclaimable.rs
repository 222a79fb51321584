//! Which queue may reclaim from which, and how much.
//!
//! A queue may take what keeps it within its fair share. It may take from a queue that holds more than it may (the
//! fair share is maintained), or, if the taker stays within its quota, from one above its own (the quota is
//! guaranteed). The queues are compared where the paths from the top diverge. In the end, no queue above the taker
//! may be fuller than a sibling that lost something.
//!
//! # The order of victims
//! What a queue holds is checked before each loss, so the order of its victims counts. They may be taken if any
//! order is allowed: only the last of them can be too much, and in KAI its place is random. So no job waits forever
//! because of the order.
//!
//! # A queue above its share would rather lose its lesser jobs
//! If the jobs of a queue are on cards of several sizes, those of low priority may be of no use to the taker. If
//! one of high priority were taken instead, though the queue is above its share only because of the others, it
//! would evict those in turn, and they the taker: three jobs would take each other's places forever.

use std::collections::{BTreeMap, BTreeSet};

use crate::amounts::{ResourceAmounts, ResourceKind, UNLIMITED};
use crate::share::QueueShare;
use crate::tree::QueueTree;

/// The job that wants to reclaim.
#[derive(Clone, Copy, Debug)]
pub struct Reclaimer {
    /// Its queue.
    pub queue: usize,
    /// Whether it can be evicted itself.
    pub is_preemptible: bool,
    /// What it wants.
    pub wants: ResourceAmounts,
}

/// What a victim's queue would lose with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueLoss {
    /// What the victim holds.
    pub amounts: ResourceAmounts,
    /// What jobs of lower priority keep in the queue, which would rather lose that.
    pub behind: ResourceAmounts,
}

/// Losses by queue and job, in the order in which a job loses them.
pub type Losses = BTreeMap<usize, Vec<Vec<QueueLoss>>>;

/// Whether the reclaimer may take anything at all.
#[must_use]
pub fn can_reclaim(tree: &QueueTree, reclaimer: Reclaimer) -> bool {
    let queue = tree.get(reclaimer.queue);
    queue.allocated().plus(reclaimer.wants).within(queue.fair())
        && (reclaimer.is_preemptible || keeps_quota(queue, reclaimer.wants))
}

/// Whether non-preemptible pods stay within the quota with `more`.
fn keeps_quota(queue: &QueueShare, more: ResourceAmounts) -> bool {
    let fixed = queue.each(|share| share.non_preemptible);
    fixed.plus(more).within(queue.deserved())
}

/// Whether a victim's queue that has `left` holds more than it may.
#[must_use]
pub fn exceeds_fair_share(victim: &QueueShare, left: ResourceAmounts) -> bool {
    !left.within(victim.allocatable())
}

/// Whether the taker stays within its quota and the victim's queue, which has `left`, does not.
#[must_use]
pub fn guarantees_quota(
    taker: &QueueShare,
    wants: ResourceAmounts,
    victim: &QueueShare,
    left: ResourceAmounts,
) -> bool {
    taker.deserves(wants) && !left.within(victim.deserved())
}

/// Whether victims of a queue are worth considering.
#[must_use]
pub fn is_candidate(tree: &QueueTree, reclaimer: Reclaimer, victim: usize) -> bool {
    let (taker, victim) = tree.parting(reclaimer.queue, victim);
    let (taker, victim) = (tree.get(taker), tree.get(victim));
    if taker.deserves(reclaimer.wants) {
        is_quota_candidate(victim, reclaimer.wants)
    } else {
        exceeds_fair_share(victim, victim.allocated())
    }
}

/// Whether a queue is over its quota in something that is wanted, or at the quota in all of it.
#[must_use]
pub fn is_quota_candidate(victim: &QueueShare, wants: ResourceAmounts) -> bool {
    let wanted: Vec<_> = wants
        .involved()
        .filter(|resource| victim.of(*resource).deserved != UNLIMITED)
        .collect();
    let is = |compare: fn(&f64, &f64) -> bool| {
        wanted.iter().any(|&resource| {
            let share = victim.of(resource);
            compare(&share.allocated, &share.deserved)
        })
    };
    is(f64::gt) || !is(f64::lt)
}

/// Whether the reclaimer may take all these victims.
#[must_use]
pub fn reclaimable(
    tree: &QueueTree,
    reclaimer: Reclaimer,
    victims: &Losses,
    multiplier: f64,
) -> bool {
    let mut left: BTreeMap<usize, ResourceAmounts> = BTreeMap::new();
    let mut involved: BTreeMap<usize, BTreeSet<ResourceKind>> = BTreeMap::new();
    let mut by_loser: BTreeMap<usize, Vec<&[QueueLoss]>> = BTreeMap::new();
    for (&queue, jobs) in victims {
        let (_, loser) = tree.parting(reclaimer.queue, queue);
        by_loser
            .entry(loser)
            .or_default()
            .extend(jobs.iter().map(Vec::as_slice));
        let losses = jobs.iter().flatten();
        let lost: ResourceAmounts = losses.map(|loss| loss.amounts).sum();
        let resources: BTreeSet<_> = lost.involved().collect();
        for above in tree.upward(queue) {
            let has = left.entry(above).or_insert(tree.get(above).allocated());
            *has = has.minus(lost);
            involved.entry(above).or_default().extend(&resources);
        }
    }
    let mut losers = by_loser.into_iter();
    losers.all(|(loser, jobs)| may_lose(tree, reclaimer, loser, jobs))
        && stays_in_bounds(tree, reclaimer, &left, &involved, multiplier)
}

/// Whether a queue may lose all of this, in some order of the jobs. The queue has the least before the last loss,
/// so a job that loses the most of some resource comes last.
fn may_lose(
    tree: &QueueTree,
    reclaimer: Reclaimer,
    loser: usize,
    mut jobs: Vec<&[QueueLoss]>,
) -> bool {
    let (taker, loser) = tree.parting(reclaimer.queue, loser);
    let (taker, loser) = (tree.get(taker), tree.get(loser));
    let at_last = |job: &[QueueLoss]| job.last().map(|loss| loss.amounts).unwrap_or_default();
    ResourceKind::ALL.into_iter().any(|resource| {
        jobs.sort_by(|left, right| at_last(left)[resource].total_cmp(&at_last(right)[resource]));
        let mut has = loser.allocated();
        jobs.iter().copied().flatten().all(|loss| {
            let remaining = has.minus(loss.behind);
            has = has.minus(loss.amounts);
            exceeds_fair_share(loser, remaining)
                || guarantees_quota(taker, reclaimer.wants, loser, remaining)
        })
    })
}

fn stays_in_bounds(
    tree: &QueueTree,
    reclaimer: Reclaimer,
    left: &BTreeMap<usize, ResourceAmounts>,
    involved: &BTreeMap<usize, BTreeSet<ResourceKind>>,
    multiplier: f64,
) -> bool {
    tree.upward(reclaimer.queue).all(|taker| {
        let queue = tree.get(taker);
        let has = left
            .get(&taker)
            .copied()
            .unwrap_or(queue.allocated())
            .plus(reclaimer.wants);
        let siblings = left
            .iter()
            .filter(|&(&other, _)| other != taker && tree.get(other).parent == queue.parent);
        let is_fair = siblings.into_iter().all(|(&other, &other_has)| {
            let mut resources = involved.get(&other).cloned().unwrap_or_default();
            resources.extend(reclaimer.wants.involved());
            is_less_full(
                &resources,
                queue,
                has,
                tree.get(other),
                other_has,
                multiplier,
            )
        });
        is_fair && (reclaimer.is_preemptible || keeps_quota(queue, reclaimer.wants))
    })
}

/// Whether the taker, if it is above its fair share, is still less saturated than the sibling.
fn is_less_full(
    resources: &BTreeSet<ResourceKind>,
    taker: &QueueShare,
    taker_has: ResourceAmounts,
    sibling: &QueueShare,
    sibling_has: ResourceAmounts,
    multiplier: f64,
) -> bool {
    resources.iter().all(|&resource| {
        let (mine, theirs) = (taker.of(resource).fair, sibling.of(resource).fair);
        let fullness = saturation(taker_has[resource], mine);
        let other = saturation(sibling_has[resource], theirs);
        !(fullness > 1.0 && theirs > 0.0 && fullness * multiplier >= other)
    })
}

/// What is held as a part of the fair share.
fn saturation(held: f64, fair: f64) -> f64 {
    if fair == 0.0 {
        if held > 0.0 { f64::INFINITY } else { 0.0 }
    } else if fair == UNLIMITED {
        0.0
    } else {
        held / fair
    }
}
