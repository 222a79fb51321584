//! The actions of the policy, by their names.

/// An action of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Place jobs on what is idle or being released.
    Allocate,
    /// Move jobs together to make room.
    Consolidate,
    /// Reclaim from other queues.
    Reclaim,
    /// Preempt jobs of lower priority.
    Preempt,
    /// Evict gangs that have too few pods.
    EvictStaleGangs,
}

impl Action {
    /// All actions, in the order in which they run.
    pub const ALL: [Self; 5] = [
        Self::Allocate,
        Self::Consolidate,
        Self::Reclaim,
        Self::Preempt,
        Self::EvictStaleGangs,
    ];
}
