//! The state of a job: whether it waits, what it holds, and what of it could be evicted.

use crate::amounts::ResourceAmounts;
use crate::cluster::{KaiBehavior, TaskStatus};
use crate::gang::JobView;
use crate::session::Session;

/// Whether a job has a pod that waits for a place.
pub(crate) fn is_waiting(session: &Session<'_>, view: &JobView) -> bool {
    view.all()
        .any(|task| session.state().task(task).status == TaskStatus::Pending)
}

/// Whether some of a gang's pods have places, but fewer than it needs.
pub(crate) fn has_too_few(session: &Session<'_>, job: usize) -> bool {
    let view = &session.facts().job(job).view;
    view.all().any(|task| session.state().has_node(task)) && !session.gang(view).has_enough()
}

/// Whether the job has a pod that may be evicted.
pub(crate) fn could_lose(session: &Session<'_>, view: &JobView) -> bool {
    let mut tasks = view.all();
    session.facts().job(view.job).job.is_preemptible
        && tasks.any(|task| session.state().has_node(task) && !is_settled(session, task))
}

/// The job without the pods that this session placed. If it has such pods, it may lose only what is above its
/// minimums.
pub(crate) fn as_victim(session: &Session<'_>, view: &JobView) -> JobView {
    let mut victim = view.only(|task| !is_settled(session, task));
    victim.keeps_core = view.all().any(|task| is_settled(session, task));
    victim
}

/// Whether this session placed the task. The same session does not undo that.
fn is_settled(session: &Session<'_>, task: usize) -> bool {
    if session.facts().settings().goes(KaiBehavior::TakesBack) {
        return false;
    }
    let before = session.state().initial(task).status;
    let now = session.state().task(task).status;
    now.is_active_allocated() && !before.is_active_allocated()
}

/// What the tasks of a view hold.
pub(crate) fn held_by(session: &Session<'_>, view: &JobView) -> ResourceAmounts {
    let held = view.all().filter_map(|task| {
        let holds = session.state().task(task).status.is_allocated();
        session
            .state()
            .charge(session.facts(), task)
            .filter(|_| holds)
    });
    held.sum()
}
