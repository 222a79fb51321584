//! The state of one task: what a session changes, and takes back.

use crate::claim_devices::ClaimDevices;
use crate::cluster::TaskStatus;
use crate::node_resources::CardAssignment;
use crate::numa::ZoneAssignment;

/// The state of a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TaskState {
    pub(crate) status: TaskStatus,
    pub(crate) node: Option<usize>,
    pub(crate) cards: CardAssignment,
    /// What it takes of its node's NUMA zones.
    pub(crate) zones: ZoneAssignment,
    /// The devices of its claims.
    pub(crate) devices: ClaimDevices,
    /// Where it still is while it waits for its new place.
    pub(crate) leaves: Option<(usize, CardAssignment)>,
    /// The devices that it still has there.
    pub(crate) leaves_devices: ClaimDevices,
    /// Its status before it was evicted tentatively.
    pub(crate) was: Option<TaskStatus>,
}

/// Whether a pod is to stay on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Stays,
    Leaves,
}

impl TaskState {
    /// The nodes of the task: the one that it has yet to leave, and the one that it has.
    pub(crate) fn presences(&self) -> impl Iterator<Item = (usize, Presence)> {
        let leaves = self
            .leaves
            .as_ref()
            .map(|(node, _)| (*node, Presence::Leaves));
        let node = self.node.filter(|_| self.status.is_active());
        let presence = match self.status {
            TaskStatus::Releasing => Presence::Leaves,
            _ => Presence::Stays,
        };
        leaves.into_iter().chain(node.map(|node| (node, presence)))
    }

    /// The node that the task is on and not about to leave.
    pub(crate) fn stays_on(&self) -> Option<usize> {
        let stays = self.status.is_active() && self.status != TaskStatus::Releasing;
        self.node.filter(|_| stays)
    }
}
