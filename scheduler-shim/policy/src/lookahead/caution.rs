//! Which evictions a plan may make, and which jobs are held back by that.

use std::collections::{BTreeMap, BTreeSet};

use crate::session::Session;

/// A job that may not evict in this step, because it would be in vain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBackJob {
    /// The job.
    pub job: String,
    /// The jobs that would get the place before it; empty if too many plans were tried to tell.
    pub by: Vec<String>,
}

/// Jobs that may not evict, and the jobs that would get the place before each; `None` if the job was never tried.
pub(crate) type BarredJobs = BTreeMap<usize, Option<BTreeSet<usize>>>;

/// Which evictions a plan may make.
#[derive(Clone, Debug, Default)]
pub(crate) enum EvictionCaution {
    /// All that the queue rules allow, as in KAI.
    #[default]
    None,
    /// Those for jobs that are not barred, except of jobs that would evict lesser ones in turn.
    Cautious(BarredJobs),
    /// Those for jobs that are not barred, without consolidation: no claim entitles a job to move others.
    Bold(BarredJobs),
}

impl EvictionCaution {
    /// Whether a job may not evict others.
    pub(crate) fn bars(&self, job: usize) -> bool {
        self.barred()
            .is_some_and(|barred| barred.contains_key(&job))
    }

    /// Whether consolidation may run.
    pub(crate) fn may_move(&self) -> bool {
        !matches!(self, Self::Bold(_))
    }

    /// Whether jobs are spared that would evict lesser ones in turn.
    pub(crate) fn spares(&self) -> bool {
        matches!(self, Self::Cautious(_))
    }

    fn barred(&self) -> Option<&BarredJobs> {
        match self {
            Self::None => None,
            Self::Cautious(barred) | Self::Bold(barred) => Some(barred),
        }
    }
}

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
