//! Looking ahead, so that nothing is evicted in vain.
//!
//! An evicted pod waits again. It may be served before the job that it was evicted for, and then the same
//! eviction would come back in every step. So the scheduler tries a plan before it carries it out.
//!
//! - The cautious plan: every job that makes others leave gets its place in the very next step. A job that
//!   would not get it is barred: it may not make others leave, and the plan is made again without it.
//!   It also takes nobody whose queue has more than it may only because of lesser jobs: whoever is taken would push
//!   those out in turn, and they the taker.
//! - A bold plan lets these jobs evict, once a cautious plan has nothing left to do. Two waiting jobs can bar each
//!   other although each would be served in the end: one takes the place that was made for the other, which then makes
//!   room once more. So a bold plan is followed with cautious steps until nothing changes, and is taken if everybody
//!   who made others leave has a place then, or another with a claim has it. It is not taken if more bold plans would
//!   lead back to where it began.
//!
//! Without bold plans a job with a claim (a quota, a fair share, a priority in its queue) could wait for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::session::Session;
use crate::step::Action;

mod caution;
mod commitments;

pub use caution::HeldBackJob;
pub(crate) use caution::{BarredJobs, EvictionCaution};
pub(crate) use commitments::EvictionCommitment;

/// How many plans are tried before nobody may evict.
const PLANS: usize = 8;

/// How many bold plans are tried.
const BOLD_PLANS: usize = 8;

/// What cautious plans may cost together, and bold ones, in times the effort of one action's search.
const EFFORT: u64 = 2;
/// What it costs to begin a plan, for each pod.
const BEGINNING: u64 = 10;

/// For how many jobs others are evicted where a plan for all of them costs too much.
const FEW: usize = 16;

/// What looking ahead may still cost.
#[derive(Debug)]
struct LookaheadBudget(u64);

impl LookaheadBudget {
    fn of(cluster: &Cluster) -> Self {
        Self(EFFORT * cluster.settings.search_effort)
    }

    fn charge(&mut self, session: &Session<'_>) {
        let pods = session.tasks.len() as u64;
        let cost = session.effort() + BEGINNING * pods;
        self.0 = self.0.saturating_sub(cost);
    }

    fn is_spent(&self) -> bool {
        self.0 == 0
    }
}

/// Runs all actions on a cluster, with no eviction in vain.
#[must_use]
pub fn plan(now: Duration, cluster: &Cluster) -> Session<'_> {
    plan_aloud(now, cluster, |_, _| ())
}

/// The same; `done` is shown what has been decided after each action. Each plan that is tried begins with
/// [`Action::Allocate`]; the last is the one that is given.
pub fn plan_aloud<'a>(
    now: Duration,
    cluster: &'a Cluster,
    mut done: impl FnMut(&Session<'a>, Action),
) -> Session<'a> {
    let nobody = BarredJobs::new();
    let session = cautious(
        now,
        cluster,
        &nobody,
        &mut LookaheadBudget::of(cluster),
        &mut done,
    );
    let barred = session.withheld();
    if barred.is_empty() || session.changes_something() {
        return session;
    }
    let mut budget = LookaheadBudget::of(cluster);
    if let Some((session, end)) = bold(now, cluster, &barred, &mut budget, &mut done)
        && !comes_back(now, cluster, end, &mut budget)
    {
        return session;
    }
    let caution = EvictionCaution::Cautious(barred);
    run(now, cluster, caution, &mut budget, &mut done)
}

/// The first bold plan that pays off, and the cluster when nothing changes any more; none once the budget is spent.
fn bold<'a>(
    now: Duration,
    cluster: &'a Cluster,
    barred: &BarredJobs,
    budget: &mut LookaheadBudget,
    done: &mut impl FnMut(&Session<'a>, Action),
) -> Option<(Session<'a>, Cluster)> {
    let tried = barred.iter().filter(|(_, by)| by.is_some());
    let without = |(job, _): (&usize, _)| {
        let mut others = barred.clone();
        others.remove(job);
        others
    };
    let idle = all_but_few(barred);
    let plans = std::iter::once(idle.clone()).chain(tried.map(without));
    for barred in plans.take(BOLD_PLANS) {
        if budget.is_spent() {
            break;
        }
        let session = run(now, cluster, EvictionCaution::Bold(barred), budget, done);
        if let Some(end) = session.pays_off(cluster, &idle, budget) {
            return Some((session, end));
        }
    }
    None
}

/// Whether bold plans lead from `at` back to where everybody runs where they run in `start`: then they would evict the
/// same pods for ever.
fn comes_back(
    now: Duration,
    start: &Cluster,
    mut at: Cluster,
    budget: &mut LookaheadBudget,
) -> bool {
    let nothing = &mut |_: &Session<'_>, _| ();
    for _ in 0..BOLD_PLANS {
        let barred = cautious(now, &at, &BarredJobs::new(), budget, nothing).withheld();
        let found = (!barred.is_empty()).then(|| bold(now, &at, &barred, budget, nothing));
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

/// Runs all actions while some jobs may not make others leave.
fn run<'a>(
    now: Duration,
    cluster: &'a Cluster,
    caution: EvictionCaution,
    budget: &mut LookaheadBudget,
    done: &mut impl FnMut(&Session<'a>, Action),
) -> Session<'a> {
    let mut session = Session::open(now, cluster);
    session.caution = caution;
    for action in Action::ALL {
        session.run(action);
        done(&session, action);
    }
    budget.charge(&session);
    session
}

/// The cautious plan, without evictions for jobs that are `idle`.
fn cautious<'a>(
    now: Duration,
    cluster: &'a Cluster,
    idle: &BarredJobs,
    budget: &mut LookaheadBudget,
    done: &mut impl FnMut(&Session<'a>, Action),
) -> Session<'a> {
    let mut barred = idle.clone();
    for _ in 0..PLANS {
        let caution = EvictionCaution::Cautious(barred.clone());
        let session = run(now, cluster, caution, budget, done);
        let broken = session.broken_promises(cluster);
        if broken.is_empty() {
            return session;
        }
        let mut kept = session.promised();
        kept.retain(|job| !broken.contains_key(job));
        barred.extend(broken);
        if budget.is_spent() {
            // The first few of those that got their places may still get them without the others.
            let few = kept.into_iter().take(FEW).collect();
            let caution = EvictionCaution::Cautious(only(&few, &barred, cluster));
            let session = run(now, cluster, caution, budget, done);
            let broken = session.broken_promises(cluster);
            if broken.is_empty() {
                return session;
            }
            barred.extend(broken);
            break;
        }
    }
    let nobody = BTreeSet::new();
    let caution = EvictionCaution::Cautious(only(&nobody, &barred, cluster));
    run(now, cluster, caution, budget, done)
}

/// Bars all jobs but these.
fn only(few: &BTreeSet<usize>, barred: &BarredJobs, cluster: &Cluster) -> BarredJobs {
    let mut all = barred.clone();
    for job in (0..cluster.jobs.len()).filter(|job| !few.contains(job)) {
        all.entry(job).or_default();
    }
    all
}

/// Nobody where few are barred; otherwise all of them but the first few that were tried.
fn all_but_few(barred: &BarredJobs) -> BarredJobs {
    let tried = barred.iter().filter(|(_, by)| by.is_some());
    let few: BTreeSet<usize> = tried.map(|(job, _)| *job).take(FEW + 1).collect();
    if few.len() <= FEW {
        return BarredJobs::new();
    }
    let mut others = barred.clone();
    for job in few.into_iter().take(FEW) {
        others.remove(&job);
    }
    others
}
