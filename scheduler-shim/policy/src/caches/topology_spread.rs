//! The pods in the domains over which a task is spread. Those of the task that was asked for last are kept.

/// The pods in the domains over which a task is spread.
#[derive(Debug, PartialEq)]
pub(crate) struct TopologySpread {
    pub(crate) task: usize,
    /// The number of changes of affinity counts when this was computed.
    pub(crate) changes: u64,
    /// One for each required constraint.
    pub(crate) required: Vec<DomainCounts>,
    /// One for each preference; `None` for those about something else.
    pub(crate) preferred: Vec<Option<DomainCounts>>,
}

/// The pods in the domains of one constraint.
#[derive(Debug, PartialEq)]
pub(crate) struct DomainCounts {
    /// By domain; `None` if the pod may not run there.
    pub(crate) counts: Vec<Option<u64>>,
    /// What the emptiest has.
    pub(crate) least: u64,
    /// 1 if the pod itself matches.
    pub(crate) own: u64,
    /// How many more than the emptiest a domain may have.
    pub(crate) skew: u64,
}

impl TopologySpread {
    /// Whether this is of the task, after that many changes.
    pub(super) fn is_of(&self, task: usize, changes: u64) -> bool {
        self.task == task && self.changes == changes
    }
}
