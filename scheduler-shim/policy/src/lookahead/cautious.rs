//! Plans that evict for few jobs at first, until no commitment is broken.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::actions;
use crate::cluster::Cluster;
use crate::lookahead::commitments::{broken_commitments, committed};
use crate::plan_record::{EvictionCaution, ExcludedJobs};
use crate::session::Session;
use crate::step::action::Action;

/// How many cautious plans are tried before nobody may evict.
pub(crate) const PLANS: usize = 8;

/// How many plans of one kind that are not cautious are tried.
pub(crate) const BOLD_PLANS: usize = 8;

/// The budget of all cautious plans, and of all bold ones, as a multiple of the search effort of one action.
pub(crate) const EFFORT: u64 = 2;

/// The cost of beginning a plan, for each pod.
pub(crate) const BEGINNING: u64 = 10;

/// How many jobs may evict if a plan for all of them costs too much.
pub(crate) const FEW: usize = 16;

/// What the lookahead may still cost.
#[derive(Debug)]
pub(crate) struct LookaheadBudget(pub(crate) u64);

impl LookaheadBudget {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        Self(EFFORT * cluster.settings.search_effort)
    }

    pub(crate) fn charge(&mut self, session: &Session<'_>) {
        let pods = session.facts().tasks().len() as u64;
        let cost = session.effort() + BEGINNING * pods;
        self.0 = self.0.saturating_sub(cost);
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.0 == 0
    }
}

/// Runs all actions with this caution.
pub(crate) fn run<'a>(
    now: Duration,
    cluster: &'a Cluster,
    caution: EvictionCaution,
    budget: &mut LookaheadBudget,
    done: &mut impl FnMut(&Session<'a>, Action),
) -> Session<'a> {
    let mut session = Session::with_caution(now, cluster, caution);
    for action in Action::ALL {
        actions::run(&mut session, action);
        done(&session, action);
    }
    budget.charge(&session);
    session
}

/// The cautious plan; jobs that are `idle` may not evict.
pub(crate) fn cautious<'a>(
    now: Duration,
    cluster: &'a Cluster,
    idle: &ExcludedJobs,
    budget: &mut LookaheadBudget,
    done: &mut impl FnMut(&Session<'a>, Action),
) -> Session<'a> {
    let mut excluded_jobs = idle.clone();
    for _ in 0..PLANS {
        let caution = EvictionCaution::Cautious(excluded_jobs.clone());
        let session = run(now, cluster, caution, budget, done);
        let broken = broken_commitments(&session, cluster);
        if broken.is_empty() {
            return session;
        }
        let mut kept = committed(&session);
        kept.retain(|job| !broken.contains_key(job));
        excluded_jobs.extend(broken);
        if budget.is_spent() {
            // The first few jobs that got their places may still get them without the others.
            let few = kept.into_iter().take(FEW).collect();
            let caution = EvictionCaution::Cautious(only(&few, &excluded_jobs, cluster));
            let session = run(now, cluster, caution, budget, done);
            let broken = broken_commitments(&session, cluster);
            if broken.is_empty() {
                return session;
            }
            excluded_jobs.extend(broken);
            break;
        }
    }
    let nobody = BTreeSet::new();
    let caution = EvictionCaution::Cautious(only(&nobody, &excluded_jobs, cluster));
    run(now, cluster, caution, budget, done)
}

/// Bars all jobs but these.
pub(crate) fn only(
    few: &BTreeSet<usize>,
    excluded_jobs: &ExcludedJobs,
    cluster: &Cluster,
) -> ExcludedJobs {
    let mut all = excluded_jobs.clone();
    for job in (0..cluster.jobs.len()).filter(|job| !few.contains(job)) {
        all.entry(job).or_default();
    }
    all
}
