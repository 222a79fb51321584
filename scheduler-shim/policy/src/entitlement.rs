//! Why a waiting job should be served.
//!
//! This decides nothing. Comparisons of schedulers ask it at the end, when nothing changes any more: if an entitled
//! job still waits, something that can be named must hold it back.

use crate::charges::{limits, wants};
use crate::gang::JobView;
use crate::session::Session;
use crate::share::QueueShare;

/// The strongest reason to serve a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entitlement {
    /// With the job, its queue and those above hold no more than their quota.
    Quota,
    /// With the job, they hold no more than their fair share.
    FairShare,
    /// A preemptible job of lower priority runs in its queue.
    Priority,
}

/// Why a waiting job should be served, if it should.
pub(crate) fn entitlement(session: &Session<'_>, job: &str) -> Option<Entitlement> {
    let facts = session.facts().job(session.facts().find_job(job)?);
    let queue = facts.queue?;
    let next = session.gang(&facts.view).next(false);
    if next.is_empty() {
        return None;
    }
    let wants = wants(session.facts(), &next);
    let tree = session.state().queues();
    let path: Vec<&QueueShare> = tree.upward(queue).map(|at| tree.get(at)).collect();
    let limits = limits(
        session.facts(),
        &next,
        session.facts().card_sizes().largest(),
    );
    let is_refused = path.iter().any(|at| {
        at.over_limit(wants).is_some()
            || at.exceeds_burst_limit(limits)
            || !facts.job.is_preemptible && at.over_quota(wants).is_some()
    });
    if is_refused {
        return None;
    }
    if path.iter().all(|at| at.deserves(wants)) {
        return Some(Entitlement::Quota);
    }
    let mut queues = path.iter();
    if queues.all(|at| at.allocated().plus(wants).within(at.allocatable())) {
        return Some(Entitlement::FairShare);
    }
    let mut others = session.facts().jobs().iter();
    let has_lesser = others.any(|other| {
        other.queue == Some(queue)
            && other.job.is_preemptible
            && other.job.priority < facts.job.priority
            && runs(session, &other.view)
    });
    has_lesser.then_some(Entitlement::Priority)
}

/// Whether a pod of the job runs or starts.
fn runs(session: &Session<'_>, view: &JobView) -> bool {
    let mut tasks = view.all();
    tasks.any(|task| session.state().task(task).status.is_allocated())
}
