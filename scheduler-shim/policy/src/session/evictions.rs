//! Which evictions a plan may make, what they were promised for, and which jobs are held back.

use std::collections::{BTreeMap, BTreeSet};

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

    pub(crate) fn barred(&self) -> Option<&BarredJobs> {
        match self {
            Self::None => None,
            Self::Cautious(barred) | Self::Bold(barred) => Some(barred),
        }
    }
}

/// A job that evicts others, and the tasks, its own and its victims', that were promised a place.
#[derive(Clone, Debug)]
pub(crate) struct EvictionCommitment {
    pub(crate) job: usize,
    pub(crate) tasks: Vec<usize>,
}
