//! Which jobs a plan holds back: they may not evict.

use crate::job_state::is_waiting;
use crate::plan_record::{ExcludedJobs, HeldBackJob};
use crate::session::Session;

/// The waiting jobs that may not evict in this step, by name.
pub(crate) fn held_back(session: &Session<'_>) -> Vec<HeldBackJob> {
    let name = |job: &usize| session.facts().job(*job).job.name.clone();
    let held = withheld(session);
    let tried = held
        .iter()
        .filter_map(|(job, by)| Some((job, by.as_ref()?)));
    tried
        .filter(|(job, _)| is_waiting(session, &session.facts().job(**job).view))
        .map(|(job, by)| HeldBackJob {
            job: name(job),
            by: by.iter().map(name).collect(),
        })
        .collect()
}

/// The jobs that may not evict, and those that found only victims that are spared.
pub(super) fn withheld(session: &Session<'_>) -> ExcludedJobs {
    let mut held = session
        .plan()
        .caution()
        .excluded_jobs()
        .cloned()
        .unwrap_or_default();
    for (&job, spared_victims) in session
        .plan()
        .spared_victims()
        .iter()
        .filter(|(job, _)| is_waiting(session, &session.facts().job(**job).view))
    {
        held.entry(job)
            .or_insert_with(|| Some(spared_victims.clone()));
    }
    held
}
