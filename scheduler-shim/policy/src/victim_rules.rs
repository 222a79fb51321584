//! Which jobs may be evicted for which, and whether an outcome is fair to the victims.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::amounts::ResourceAmounts;
use crate::capacity_bound::asks_alike;
use crate::charges::wants;
use crate::cluster::{Queue, TaskStatus};
use crate::gang::JobView;
use crate::jobs_by_queue::JobsByQueue;
use crate::min_runtime::{self, against_reclaim, along, is_protected, keeps_minimum};
use crate::reclaimable::{
    Losses, QueueLoss, Reclaimer, exceeds_fair_share, guarantees_quota, is_candidate,
};
use crate::scenario::VictimBatch;
use crate::session::Session;

/// The job as a reclaimer that wants to place these tasks; `None` if its queue can run no jobs.
pub(crate) fn reclaimer_of(
    session: &Session<'_>,
    view: &JobView,
    tasks: &[usize],
) -> Option<Reclaimer> {
    let facts = session.facts().job(view.job);
    Some(Reclaimer {
        queue: facts.queue?,
        is_preemptible: facts.job.is_preemptible,
        wants: wants(session.facts(), tasks),
    })
}

/// Whether a job of another queue may be considered as a victim.
pub(crate) fn may_reclaim_from(session: &Session<'_>, reclaimer: Reclaimer, victim: usize) -> bool {
    let facts = session.facts().job(victim);
    let Some(queue) = facts.queue.filter(|&queue| queue != reclaimer.queue) else {
        return false;
    };
    let is_elastic = session.gang(&facts.view).is_elastic();
    let is_safe = is_safe_from_reclaim(session, reclaimer.queue, victim);
    is_candidate(session.state().queues(), reclaimer, queue)
        && min_runtime::is_candidate(is_safe, is_elastic)
}

/// Whether the victim's queue holds so much that a reclaimer could take something, however little.
pub(crate) fn could_give(session: &Session<'_>, reclaimer: Reclaimer, victim: usize) -> bool {
    let Some(queue) = session.facts().job(victim).queue else {
        return false;
    };
    let queues = session.state().queues();
    let (taker, loser) = queues.parting(reclaimer.queue, queue);
    let (taker, loser) = (queues.get(taker), queues.get(loser));
    let has = loser.allocated();
    exceeds_fair_share(loser, has)
        || guarantees_quota(taker, ResourceAmounts::default(), loser, has)
}

/// Whether a job of the same queue may be considered as a victim.
pub(crate) fn may_preempt(session: &Session<'_>, preemptor: usize, victim: usize) -> bool {
    let (job, other) = (session.facts().job(preemptor), session.facts().job(victim));
    job.queue == other.queue
        && other.job.priority < job.job.priority
        && min_runtime::is_candidate(
            is_safe_from_preemption(session, victim),
            session.gang(&other.view).is_elastic(),
        )
}

/// Whether a running job is within its minimum run time against reclaim.
pub(crate) fn is_safe_from_reclaim(session: &Session<'_>, reclaimer: usize, victim: usize) -> bool {
    let facts = session.facts().job(victim);
    let Some(queue) = facts.queue else {
        return false;
    };
    let queues = session.state().queues();
    let (mine, theirs) = (queues.path(reclaimer), queues.path(queue));
    let shared = mine.iter().zip(&theirs).take_while(|(l, r)| l == r).count();
    let path: Vec<_> = theirs
        .iter()
        .map(|&queue| queue_settings(session, queue).and_then(|queue| queue.reclaim_min_runtime))
        .collect();
    let settings = session.facts().settings();
    let default = settings.reclaim_min_runtime;
    let minimum = against_reclaim(settings.resolution, &path, shared, default);
    is_protected(last_start(session, victim), minimum, session.facts().now())
}

/// Whether a running job is within its minimum run time against preemption.
pub(crate) fn is_safe_from_preemption(session: &Session<'_>, victim: usize) -> bool {
    let facts = session.facts().job(victim);
    let path: Vec<_> = facts
        .queue
        .map(|queue| session.state().queues().path(queue))
        .unwrap_or_default()
        .into_iter()
        .map(|queue| queue_settings(session, queue).and_then(|queue| queue.preempt_min_runtime))
        .collect();
    let minimum = along(&path, session.facts().settings().preempt_min_runtime);
    is_protected(last_start(session, victim), minimum, session.facts().now())
}

/// When pods of a job last started, this session included.
pub(crate) fn last_start(session: &Session<'_>, job: usize) -> Option<Duration> {
    if session.plan().has_started(job) {
        return Some(session.facts().now());
    }
    session.facts().job(job).job.last_start
}

fn queue_settings<'s>(session: &'s Session<'_>, queue: usize) -> Option<&'s Queue> {
    session
        .facts()
        .queue(&session.state().queues().get(queue).uid)
}

/// Whether every protected victim keeps the minimums of its pod sets.
pub(crate) fn keeps_minimums(
    session: &Session<'_>,
    batches: &[VictimBatch],
    is_safe: impl Fn(&Session<'_>, usize) -> bool,
) -> bool {
    let mut by_set: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for batch in batches {
        for &task in &batch.tasks {
            *by_set
                .entry((batch.job, session.facts().task(task).set))
                .or_default() += 1;
        }
    }
    by_set.into_iter().all(|((job, set), gone)| {
        let view = &session.facts().job(job).view;
        let gang = session.gang(view);
        let active = view.tasks[set]
            .iter()
            .filter(|&&task| session.state().task(task).status.is_active())
            .count();
        !gang.is_elastic() || keeps_minimum(is_safe(session, job), active, gone, view.minimum(set))
    })
}

/// What the victims lose, by queue and job: pods above the minimum one by one, the rest of a job at once.
pub(crate) fn lost(
    session: &Session<'_>,
    batches: &[VictimBatch],
    running: &JobsByQueue,
) -> Losses {
    let mut by_job: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for batch in batches {
        by_job.entry(batch.job).or_default().extend(&batch.tasks);
    }
    let mut lost = Losses::new();
    for (job, tasks) in by_job {
        let facts = session.facts().job(job);
        let Some(queue) = facts.queue else { continue };
        let mut evicted: BTreeMap<usize, usize> = BTreeMap::new();
        let (mut core, mut elastic) = (Vec::new(), Vec::new());
        for task in tasks {
            let set = session.facts().task(task).set;
            let count = evicted.entry(set).or_default();
            *count += 1;
            let part = if *count <= facts.view.minimum(set) {
                &mut core
            } else {
                &mut elastic
            };
            part.extend(loss_of(session, task));
        }
        if !core.is_empty() {
            elastic.push(core.into_iter().sum());
        }
        if elastic.is_empty() {
            continue;
        }
        let behind = behind(session, job, running);
        let losses = elastic
            .into_iter()
            .map(|amounts| QueueLoss { amounts, behind });
        lost.entry(queue).or_default().push(losses.collect());
    }
    lost
}

/// What jobs of lower priority than a victim hold in its queue.
fn behind(session: &Session<'_>, victim: usize, running: &JobsByQueue) -> ResourceAmounts {
    let facts = session.facts().job(victim);
    if !session.facts().settings().by_priority || !session.plan().caution().spares() {
        return ResourceAmounts::default();
    }
    let jobs = facts.queue.map(|queue| running.of_queue(queue));
    let lower = jobs
        .into_iter()
        .flatten()
        .rev()
        .take_while(|&&job| session.facts().job(job).job.priority < facts.job.priority);
    let tasks = lower.flat_map(|&job| session.facts().job(job).view.all());
    let held = tasks.filter(|&task| session.state().has_node(task));
    held.filter_map(|task| session.state().charge(session.facts(), task))
        .sum()
}

/// Whether two jobs ask for the same under the same conditions.
pub(crate) fn are_alike(session: &Session<'_>, left: usize, right: usize) -> bool {
    let (l, r) = (session.facts().job(left), session.facts().job(right));
    let waits = |task: usize| session.state().task(task).status == TaskStatus::Pending;
    let pairs = l.view.all().zip(r.view.all());
    l.queue == r.queue
        && l.job.priority == r.job.priority
        && l.job.is_preemptible == r.job.is_preemptible
        && l.job.root == r.job.root
        && l.view.all().count() == r.view.all().count()
        && pairs.into_iter().all(|(left, right)| {
            let (one, other) = (
                session.facts().task(left).task,
                session.facts().task(right).task,
            );
            waits(left)
                && waits(right)
                && one.all_claims().next().is_none()
                && other.all_claims().next().is_none()
                && session.facts().task(left).set == session.facts().task(right).set
                && asks_alike(session.facts(), left, right)
                && one.is_guaranteed == other.is_guaranteed
                && one.containers == other.containers
                && one.labels == other.labels
                && one.near == other.near
                && one.apart == other.apart
                && one.even == other.even
                && one.prefers == other.prefers
        })
}

/// What a victim loses, unless it only moves.
fn loss_of(session: &Session<'_>, task: usize) -> Option<ResourceAmounts> {
    let state = session.state().task(task);
    let is_moved = state.status.is_active_allocated();
    if is_moved && session.facts().settings().consolidating_reclaim {
        return None;
    }
    session.state().charge(session.facts(), task)
}
