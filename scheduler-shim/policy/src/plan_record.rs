//! Which evictions a plan may make, what they were promised for, and which jobs are held back.
//!
//! A session writes this down after a commit. Nothing of it is ever undone.

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
pub(crate) type ExcludedJobs = BTreeMap<usize, Option<BTreeSet<usize>>>;

/// Which evictions a plan may make.
#[derive(Clone, Debug, Default)]
pub(crate) enum EvictionCaution {
    /// All that the queue rules allow, as in KAI.
    #[default]
    None,
    /// Those for jobs that are not barred, except of jobs that would evict lesser ones in turn.
    Cautious(ExcludedJobs),
    /// Those for jobs that are not barred, without consolidation: no claim entitles a job to move others.
    Bold(ExcludedJobs),
    /// Only moves, for jobs that are not barred.
    Moving(ExcludedJobs),
    /// Those for jobs that are not barred. The freed places are kept for them, and for the pods that move.
    Nominating(ExcludedJobs),
}

impl EvictionCaution {
    /// Whether a job may not evict others.
    pub(crate) fn bars(&self, job: usize) -> bool {
        self.excluded_jobs()
            .is_some_and(|excluded_jobs| excluded_jobs.contains_key(&job))
    }

    /// Whether consolidation may run.
    pub(crate) fn may_move(&self) -> bool {
        !matches!(self, Self::Bold(_))
    }

    /// Whether jobs are spared that would evict lesser ones in turn.
    pub(crate) fn spares(&self) -> bool {
        matches!(self, Self::Cautious(_))
    }

    pub(crate) fn excluded_jobs(&self) -> Option<&ExcludedJobs> {
        match self {
            Self::None => None,
            Self::Cautious(excluded_jobs)
            | Self::Bold(excluded_jobs)
            | Self::Moving(excluded_jobs)
            | Self::Nominating(excluded_jobs) => Some(excluded_jobs),
        }
    }
}

/// A job that evicts others, and the tasks, its own and its victims', that were promised a place.
#[derive(Clone, Debug)]
pub(crate) struct EvictionCommitment {
    pub(crate) job: usize,
    pub(crate) tasks: Vec<usize>,
}

/// What a session decided besides the states of tasks.
#[derive(Debug, Default)]
pub(crate) struct PlanRecord {
    caution: EvictionCaution,
    /// The places that were promised to jobs that evict.
    commitments: Vec<EvictionCommitment>,
    /// The jobs that found only victims that are spared, with those victims.
    spared_victims: BTreeMap<usize, BTreeSet<usize>>,
    /// The jobs of which pods were started.
    started: BTreeSet<usize>,
    is_moves_only: bool,
}

impl PlanRecord {
    /// The record of a plan that may make these evictions.
    pub(crate) fn with(caution: EvictionCaution) -> Self {
        Self {
            caution,
            ..Self::default()
        }
    }

    /// Which evictions the plan may make.
    pub(crate) fn caution(&self) -> &EvictionCaution {
        &self.caution
    }

    pub(crate) fn commitments(&self) -> &[EvictionCommitment] {
        &self.commitments
    }

    /// Records the places that a job and its victims were promised.
    pub(crate) fn commit(&mut self, commitment: EvictionCommitment) {
        self.commitments.push(commitment);
    }

    /// The jobs that found only victims that are spared, with those victims.
    pub(crate) fn spared_victims(&self) -> &BTreeMap<usize, BTreeSet<usize>> {
        &self.spared_victims
    }

    /// Records the victims that were spared although a job needs their room.
    pub(crate) fn spare(&mut self, job: usize, victims: BTreeSet<usize>) {
        self.spared_victims.insert(job, victims);
    }

    /// The tasks that are to get the places that the plan frees, before all others.
    pub(crate) fn nominated(&self) -> impl Iterator<Item = usize> {
        let commitments = self.commitments.iter();
        let is_kept = matches!(self.caution, EvictionCaution::Nominating(_));
        let tasks = commitments.flat_map(|commitment| commitment.tasks.iter().copied());
        tasks.filter(move |_| is_kept)
    }

    /// Whether pods of a job were started in this session.
    pub(crate) fn has_started(&self, job: usize) -> bool {
        self.started.contains(&job)
    }

    /// Records that pods of a job were started.
    pub(crate) fn record_start(&mut self, job: usize) {
        self.started.insert(job);
    }

    /// Whether pods leave only to be placed again. Then no pod is the first of its kind while another of it moves.
    pub(crate) fn is_moves_only(&self) -> bool {
        self.is_moves_only
    }

    /// Sets whether pods leave only to be placed again.
    pub(crate) fn set_moves_only(&mut self, is_moves_only: bool) {
        self.is_moves_only = is_moves_only;
    }
}
