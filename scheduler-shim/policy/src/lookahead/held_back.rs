//! Which jobs a plan holds back: they may not evict.

use crate::session::Session;
use crate::session::evictions::{BarredJobs, HeldBackJob};

impl Session<'_> {
    /// The waiting jobs that may not evict in this step, by name.
    #[must_use]
    pub fn held_back(&self) -> Vec<HeldBackJob> {
        let name = |job: &usize| self.jobs[*job].job.name.clone();
        let held = self.withheld();
        let tried = held
            .iter()
            .filter_map(|(job, by)| Some((job, by.as_ref()?)));
        tried
            .filter(|(job, _)| self.is_waiting(&self.jobs[**job].view))
            .map(|(job, by)| HeldBackJob {
                job: name(job),
                by: by.iter().map(name).collect(),
            })
            .collect()
    }

    /// The jobs that may not evict, and those that found only victims that are spared.
    pub(super) fn withheld(&self) -> BarredJobs {
        let mut held = self.caution.barred().cloned().unwrap_or_default();
        let waits = |job: usize| self.is_waiting(&self.jobs[job].view);
        for (&job, spared) in self.sparing.iter().filter(|(job, _)| waits(**job)) {
            held.entry(job).or_insert_with(|| Some(spared.clone()));
        }
        held
    }
}
