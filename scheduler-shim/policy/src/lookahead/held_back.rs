//! Which jobs a plan holds back: they may not evict.

use crate::actions::is_waiting;
use crate::session::Session;
use crate::session::evictions::{BarredJobs, HeldBackJob};

/// The waiting jobs that may not evict in this step, by name.
pub(crate) fn held_back(session: &Session<'_>) -> Vec<HeldBackJob> {
    let name = |job: &usize| session.jobs[*job].job.name.clone();
    let held = withheld(session);
    let tried = held
        .iter()
        .filter_map(|(job, by)| Some((job, by.as_ref()?)));
    tried
        .filter(|(job, _)| is_waiting(session, &session.jobs[**job].view))
        .map(|(job, by)| HeldBackJob {
            job: name(job),
            by: by.iter().map(name).collect(),
        })
        .collect()
}

/// The jobs that may not evict, and those that found only victims that are spared.
pub(super) fn withheld(session: &Session<'_>) -> BarredJobs {
    let mut held = session.caution.barred().cloned().unwrap_or_default();
    let waits = |job: usize| is_waiting(session, &session.jobs[job].view);
    for (&job, spared) in session.sparing.iter().filter(|(job, _)| waits(**job)) {
        held.entry(job).or_insert_with(|| Some(spared.clone()));
    }
    held
}
