//! How long a running job is safe from eviction.
//!
//! Against preemption, the first value on the way from the victim's queue to the top counts. Against reclaim it is
//! the same walk, or one that starts just below the lowest queue that both sides share: the queues further down
//! belong to the victim's side alone.

use std::time::Duration;

/// How the minimum run time against reclaim is resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinRuntimeResolution {
    /// From the victim's queue up.
    Queue,
    /// From the child of the lowest common ancestor, on the victim's side, up.
    #[default]
    LowestCommonAncestor,
}

/// The minimum run time along a path from the top down: the value of the lowest queue that has one.
#[must_use]
pub fn along(path: &[Option<Duration>], default: Duration) -> Duration {
    let set = path.iter().rev().find_map(|value| *value);
    set.unwrap_or(default)
}

/// The minimum run time against reclaim.
///
/// `path` holds the queues from the top down to the victim's, each with its value; `shared` says how
/// many of them, from the top, are also above the reclaimer's queue or are that queue.
#[must_use]
pub fn against_reclaim(
    resolution: MinRuntimeResolution,
    path: &[Option<Duration>],
    shared: usize,
    default: Duration,
) -> Duration {
    match resolution {
        MinRuntimeResolution::Queue => along(path, default),
        MinRuntimeResolution::LowestCommonAncestor => {
            let end = (shared + 1).min(path.len());
            along(&path[..end], default)
        }
    }
}

/// Whether a job that started at `started` is still safe.
#[must_use]
pub fn is_protected(started: Option<Duration>, minimum: Duration, now: Duration) -> bool {
    started.is_some_and(|started| now < started + minimum)
}

/// Whether a job may be a victim. A protected one may lose only pods above its minimum, so it must be elastic.
#[must_use]
pub const fn is_candidate(is_protected: bool, is_elastic: bool) -> bool {
    !is_protected || is_elastic
}

/// Whether a victim keeps its minimum, if it is protected.
#[must_use]
pub const fn keeps_minimum(is_protected: bool, active: usize, gone: usize, minimum: usize) -> bool {
    !is_protected || minimum + gone <= active
}
