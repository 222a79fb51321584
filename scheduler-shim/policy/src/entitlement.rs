//! Why a waiting job should be served.
//!
//! This decides nothing. Comparisons of schedulers ask it at the end, when nothing changes any more: if an entitled
//! job still waits, something that can be named must hold it back.

use crate::charges::wants;
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
    let found = session
        .facts()
        .jobs()
        .iter()
        .position(|facts| facts.job.name == job)?;
    let facts = session.facts().job(found);
    let queue = facts.queue?;
    let next = session.gang(&facts.view).next(false);
    if next.is_empty() {
        return None;
    }
    let wants = wants(session.facts(), &next);
    let along = |may: &dyn Fn(&QueueShare) -> bool| {
        session
            .state()
            .queues()
            .upward(queue)
            .all(|at| may(session.state().queues().get(at)))
    };
    let is_refused = |at: &QueueShare| {
        at.over_limit(wants).is_some()
            || !facts.job.is_preemptible && at.over_quota(wants).is_some()
    };
    if session
        .state()
        .queues()
        .upward(queue)
        .any(|at| is_refused(session.state().queues().get(at)))
    {
        return None;
    }
    if along(&|at| at.deserves(wants)) {
        return Some(Entitlement::Quota);
    }
    if along(&|at| at.allocated().plus(wants).within(at.allocatable())) {
        return Some(Entitlement::FairShare);
    }
    let is_lower = |other: usize| {
        let other = session.facts().job(other);
        other.queue == Some(queue)
            && other.job.is_preemptible
            && other.job.priority < facts.job.priority
            && other
                .view
                .all()
                .any(|task| session.state().task(task).status.is_allocated())
    };
    (0..session.facts().jobs().len())
        .any(is_lower)
        .then_some(Entitlement::Priority)
}
