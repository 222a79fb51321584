//! Plans that keep the freed place for the job that it was freed for.
//!
//! Two waiting jobs may both be above their shares. Then neither has a claim to the other's place, but one may preempt
//! lesser jobs of its own queue, and the other is next in the order of queues. It would get each place that is freed,
//! again and again. So the first one is nominated: its pods go before all others in the next steps, as in Kubernetes
//! (`status.nominatedNodeName`). Pods that are only moved are nominated, too, so none of them loses its place.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::lookahead::cautious::{BOLD_PLANS, LookaheadBudget, only, run};
use crate::lookahead::commitments::carried_out;
use crate::lookahead::payoff::comes_to_rest;
use crate::plan_record::{EvictionCaution, ExcludedJobs};
use crate::session::Session;
use crate::step::action::Action;

/// The first plan in which a barred job evicts, is nominated, and has its places when nothing changes any more; and the
/// cluster at that point. Jobs that are `idle` may not evict after that.
pub(super) fn nominating<'a>(
    now: Duration,
    cluster: &'a Cluster,
    excluded_jobs: &ExcludedJobs,
    idle: &ExcludedJobs,
    budget: &mut LookaheadBudget,
    done: &mut impl FnMut(&Session<'a>, Action),
) -> Option<(Session<'a>, Cluster)> {
    let tried = excluded_jobs.iter().filter(|(_, by)| by.is_some());
    for (&job, _) in tried.take(BOLD_PLANS) {
        if budget.is_spent() {
            break;
        }
        let mut others = only(&BTreeSet::from([job]), excluded_jobs, cluster);
        others.remove(&job);
        let caution = EvictionCaution::Nominating(others);
        let session = run(now, cluster, caution, budget, done);
        let tasks = session.nominated();
        if tasks.is_empty() {
            continue;
        }
        let next = carried_out(&session, cluster);
        let end = comes_to_rest(&session, cluster, next, idle, budget, |end, _| {
            tasks.iter().all(|&task| end.state().has_node(task))
        });
        if let Some(end) = end {
            return Some((session, end));
        }
    }
    None
}
