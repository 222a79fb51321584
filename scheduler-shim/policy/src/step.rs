//! The whole policy as one function, and its outcome.

use std::time::Duration;

use crate::cluster::{Cluster, TaskStatus};
use crate::lookahead::plan;
use crate::task_placement::TaskPlacement;

pub(crate) mod action;

/// A decision of the policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    /// End a pod, so that another can start.
    Evict {
        /// Its job.
        job: String,
        /// The pod.
        task: String,
    },
    /// Start a pod on its node now.
    Bind {
        /// Its job.
        job: String,
        /// The pod.
        task: String,
        /// Its place.
        placement: TaskPlacement,
    },
    /// Reserve a place for a pod until others have left.
    Reserve {
        /// Its job.
        job: String,
        /// The pod.
        task: String,
        /// Its place.
        placement: TaskPlacement,
        /// Whether the place is kept for it: it is to be nominated, and placed before all others.
        is_nominated: bool,
    },
}

/// What to do now: evictions, then bindings, then reservations, each by name.
#[must_use]
pub fn step(now: Duration, cluster: &Cluster) -> Vec<Decision> {
    plan(now, cluster).decisions()
}

/// A pod after the decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOutcome {
    /// Its status.
    pub status: TaskStatus,
    /// Where it is or will be.
    pub placement: Option<TaskPlacement>,
}
