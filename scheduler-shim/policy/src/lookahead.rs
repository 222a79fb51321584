//! Looks ahead, so that nothing is evicted in vain.
//!
//! An evicted pod waits again. If it were served before the job that it was evicted for, the same eviction would
//! come back in every step. So the scheduler tries a plan before it carries it out.
//!
//! - The cautious plan: every job that evicts others gets its place in the very next step. A job that would not is
//!   barred: it may not evict, and the plan is made again without it. The plan also spares jobs whose queue is
//!   above its share only because of lesser jobs. Such a victim would evict those in turn, and they the reclaimer.
//! - A bold plan lets barred jobs evict, once a cautious plan has nothing left to do. Two waiting jobs can bar each
//!   other although each would be served in the end: one takes the place made for the other, which then makes room
//!   again. So a bold plan is followed by cautious steps until nothing changes. It is taken if, at that point,
//!   every job that evicted has a place, or another job with a claim has it. It is not taken if it would leave a
//!   gang with too few pods on the way, or if more bold plans would lead back to the start.
//! - A plan that only moves pods is tried after that, for one barred job at a time. The moved pods may get other places
//!   than planned, so it is followed like a bold plan. It is taken if the job has its place in the end, and every pod
//!   that had one has one or was evicted for a job with a claim in a later step.
//! - A plan that nominates a job is tried last. Two waiting jobs may both be above their shares. Then neither has a claim
//!   to the other's place, but one may preempt lesser jobs of its own queue, and the other is next in the order of
//!   queues. It would get each place that is freed, again and again. So the pods of the first one are nominated, as in
//!   Kubernetes (`status.nominatedNodeName`): they go before all others in the next steps. Pods that only move are
//!   nominated, too. The plan is taken if each of them has a place in the end.
//!
//! Without bold plans, a job with a claim (a quota, a fair share, a priority in its queue) could wait forever.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::lookahead::commitments::changes_something;
use crate::lookahead::held_back::withheld;
use crate::lookahead::payoff::pays_off;
use crate::plan_record::{EvictionCaution, ExcludedJobs};
use crate::session::Session;
use crate::step::action::Action;

mod cautious;
mod commitments;
pub(crate) mod held_back;
mod payoff;

use cautious::{BOLD_PLANS, FEW, LookaheadBudget, cautious, only, run};

/// Runs all actions on a cluster, and evicts nothing in vain.
#[must_use]
pub fn plan(now: Duration, cluster: &Cluster) -> Session<'_> {
    plan_observed(now, cluster, |_, _| ())
}

/// Like `plan`, and calls `done` after each action. Each plan that is tried begins with [`Action::Allocate`]; the
/// last one is returned.
pub fn plan_observed<'a>(
    now: Duration,
    cluster: &'a Cluster,
    mut done: impl FnMut(&Session<'a>, Action),
) -> Session<'a> {
    let nobody = ExcludedJobs::new();
    let session = cautious(
        now,
        cluster,
        &nobody,
        &mut LookaheadBudget::of(cluster),
        &mut done,
    );
    let excluded_jobs = withheld(&session);
    if excluded_jobs.is_empty() || changes_something(&session) {
        return session;
    }
    let mut budget = LookaheadBudget::of(cluster);
    if let Some((session, end)) = further(now, cluster, &excluded_jobs, &mut budget, &mut done)
        && !comes_back(now, cluster, end, &mut budget)
    {
        return session;
    }
    let caution = EvictionCaution::Cautious(excluded_jobs);
    run(now, cluster, caution, &mut budget, &mut done)
}

/// The first bold plan that pays off, and the cluster when nothing changes any more; `None` once the budget is
/// spent.
fn bold<'a>(
    now: Duration,
    cluster: &'a Cluster,
    excluded_jobs: &ExcludedJobs,
    budget: &mut LookaheadBudget,
    done: &mut impl FnMut(&Session<'a>, Action),
) -> Option<(Session<'a>, Cluster)> {
    let tried = excluded_jobs.iter().filter(|(_, by)| by.is_some());
    let idle = all_but_few(excluded_jobs);
    let plans = std::iter::once(idle.clone()).chain(tried.map(|(job, _): (&usize, _)| {
        let mut others = excluded_jobs.clone();
        others.remove(job);
        others
    }));
    for excluded_jobs in plans.take(BOLD_PLANS) {
        if budget.is_spent() {
            break;
        }
        let session = run(
            now,
            cluster,
            EvictionCaution::Bold(excluded_jobs),
            budget,
            done,
        );
        if let Some(end) = pays_off(&session, cluster, &idle, budget) {
            return Some((session, end));
        }
    }
    None
}

/// The first bold plan that pays off; else the first plan that only moves pods and pays off; else the first that
/// nominates a job.
fn further<'a>(
    now: Duration,
    cluster: &'a Cluster,
    excluded_jobs: &ExcludedJobs,
    budget: &mut LookaheadBudget,
    done: &mut impl FnMut(&Session<'a>, Action),
) -> Option<(Session<'a>, Cluster)> {
    let found = bold(now, cluster, excluded_jobs, budget, done);
    let cautions: [fn(ExcludedJobs) -> EvictionCaution; 2] =
        [EvictionCaution::Moving, EvictionCaution::Nominating];
    found.or_else(|| {
        let mut cautions = cautions.into_iter();
        cautions.find_map(|caution| for_one_job(now, cluster, excluded_jobs, caution, budget, done))
    })
}

/// The first plan for one barred job alone that pays off, and the cluster in the end.
fn for_one_job<'a>(
    now: Duration,
    cluster: &'a Cluster,
    excluded_jobs: &ExcludedJobs,
    caution: fn(ExcludedJobs) -> EvictionCaution,
    budget: &mut LookaheadBudget,
    done: &mut impl FnMut(&Session<'a>, Action),
) -> Option<(Session<'a>, Cluster)> {
    let idle = all_but_few(excluded_jobs);
    let tried = excluded_jobs.iter().filter(|(_, by)| by.is_some());
    for (&job, _) in tried.take(BOLD_PLANS) {
        if budget.is_spent() {
            break;
        }
        let mut others = only(&BTreeSet::from([job]), excluded_jobs, cluster);
        others.remove(&job);
        let session = run(now, cluster, caution(others), budget, done);
        if let Some(end) = pays_off(&session, cluster, &idle, budget) {
            return Some((session, end));
        }
    }
    None
}

/// Whether bold plans lead from `at` back to the placements of `start`, or do not end. Then they would evict the
/// same pods forever.
fn comes_back(
    now: Duration,
    start: &Cluster,
    mut at: Cluster,
    budget: &mut LookaheadBudget,
) -> bool {
    let nothing = &mut |_: &Session<'_>, _| ();
    for _ in 0..BOLD_PLANS {
        let excluded_jobs = withheld(&cautious(now, &at, &ExcludedJobs::new(), budget, nothing));
        let found =
            (!excluded_jobs.is_empty()).then(|| further(now, &at, &excluded_jobs, budget, nothing));
        let Some((_, end)) = found.flatten() else {
            return false;
        };
        at = end;
        if is_same(start, &at) {
            return true;
        }
    }
    true
}

/// Whether the same pods are on the same nodes.
fn is_same(left: &Cluster, right: &Cluster) -> bool {
    let tasks = |cluster: &Cluster| -> BTreeMap<String, Option<String>> {
        let tasks = cluster.jobs.iter().flat_map(|job| &job.tasks);
        tasks
            .map(|task| (task.name.clone(), task.node.clone()))
            .collect()
    };
    tasks(left) == tasks(right)
}

/// No jobs if few are barred; otherwise all barred jobs but the first few that were tried.
fn all_but_few(excluded_jobs: &ExcludedJobs) -> ExcludedJobs {
    let tried = excluded_jobs.iter().filter(|(_, by)| by.is_some());
    let few: BTreeSet<usize> = tried.map(|(job, _)| *job).take(FEW + 1).collect();
    if few.len() <= FEW {
        return ExcludedJobs::new();
    }
    let mut others = excluded_jobs.clone();
    for job in few.into_iter().take(FEW) {
        others.remove(&job);
    }
    others
}
