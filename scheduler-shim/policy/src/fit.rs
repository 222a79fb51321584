//! Whether a pod may run on a node.
//!
//! Checks free resources first, then everything else.

use crate::amounts::ResourceAmounts;
use crate::cluster::{MigStrategy, TaskGpuRequest, TaskStatus};
use crate::node_resources::ResourceRequest;
use crate::session::Session;

impl Session<'_> {
    /// Whether the task fits the node, counting what is being released there.
    pub(crate) fn fits(&self, task: usize, node: usize, need: &ResourceRequest) -> bool {
        self.node_states[node].fits_soon(need)
            && (!self.settings.has_predicates || self.is_allowed(task, node, need))
    }

    fn is_allowed(&self, task: usize, node: usize, need: &ResourceRequest) -> bool {
        self.grants_claims(task, node)
            && self.aligns(task, node)
            && self.may_ever_be(task, node)
            && self.may_take_partitions(task, node)
            && self.has_pod_place(node, need)
            && self.matches_neighbours(task, node)
    }

    /// Whether the queues have room for the task's charge on this node.
    pub(crate) fn has_node_quota(&self, task: usize, node: usize) -> bool {
        let node_state = &self.node_states[node];
        match &self.tasks[task].task.cards {
            // The lowest possible charge: which cards it gets depends on what its queues can pay for.
            TaskGpuRequest::Shared { .. } if node_state.sizes.is_listed() => {
                self.has_quota(task, self.charged(task, node_state.largest()))
            }
            _ => self.has_quota(task, self.charged(task, node_state.card_memory)),
        }
    }

    /// Whether the queues of a task have room for `charge`.
    pub(crate) fn has_quota(&self, task: usize, charge: ResourceAmounts) -> bool {
        !self.settings.has_predicates || self.is_within_bounds(self.tasks[task].job, charge)
    }

    /// Whether the job's queue and all above have room for `more`.
    pub(crate) fn is_within_bounds(&self, job: usize, more: ResourceAmounts) -> bool {
        self.is_within_limits(job, more) && self.is_within_quota(job, more)
    }

    fn is_within_limits(&self, job: usize, more: ResourceAmounts) -> bool {
        let Some(queue) = self.jobs[job].queue.filter(|_| self.settings.has_quotas) else {
            return true;
        };
        let mut queues = self.queues.upward(queue);
        queues.all(|queue| self.queues.get(queue).over_limit(more).is_none())
    }

    /// Whether a non-preemptible job keeps its queues within their quotas.
    pub(crate) fn is_within_quota(&self, job: usize, more: ResourceAmounts) -> bool {
        let facts = &self.jobs[job];
        let bound = self.settings.has_quotas && !facts.job.is_preemptible;
        let Some(queue) = facts.queue.filter(|_| bound) else {
            return true;
        };
        let mut queues = self.queues.upward(queue);
        queues.all(|queue| self.queues.get(queue).over_quota(more).is_none())
    }

    /// Whether the kubelet's Topology Manager would admit the task.
    fn aligns(&self, task: usize, node: usize) -> bool {
        !self.node_states[node].zones.is_strict() || self.zones_for(task, node).is_some()
    }

    /// Whether no legacy MIG pod keeps partitions from the task.
    fn may_take_partitions(&self, task: usize, node: usize) -> bool {
        let facts = self.tasks[task].task;
        let node_state = &self.node_states[node];
        let takes_partitions = matches!(facts.cards, TaskGpuRequest::Partitions(_));
        !(takes_partitions && node_state.legacy > 0)
    }

    /// Whether the task may be on the node, whatever else runs there.
    pub(crate) fn may_ever_be(&self, task: usize, node: usize) -> bool {
        let facts = self.tasks[task].task;
        let takes_partitions = matches!(facts.cards, TaskGpuRequest::Partitions(_));
        let is_kind = match self.node_states[node].mig {
            _ if !self.wants_cards(task) => true,
            None => !takes_partitions,
            Some(MigStrategy::Single) => matches!(facts.cards, TaskGpuRequest::Whole(_)),
            Some(MigStrategy::Mixed) => takes_partitions,
        };
        !self.settings.has_predicates
            || (!facts.is_legacy_mig && is_kind && self.matches_labels(task, node))
    }

    /// Whether the node may run one more pod. A share that opens a card counts as two, as with KAI's reservation
    /// pod.
    fn has_pod_place(&self, node: usize, need: &ResourceRequest) -> bool {
        let node_state = &self.node_states[node];
        let places = node_state.idle.pods + node_state.releasing.pods;
        match need.share {
            None => places > 0,
            Some(share) if node_state.with_room(share).count() >= share.devices => places > 0,
            Some(_) => places > 1,
        }
    }

    /// Whether the node may run too few pods for the pod itself and the card that its share would open.
    #[must_use]
    pub fn lacks_pod_place(&self, task: &str, node: &str) -> bool {
        let named = self.named(task, node);
        named.is_some_and(|(task, node)| !self.has_pod_place(node, &self.need(task, node)))
    }

    /// Whether the kubelet of a node could align a pod with what is free in its NUMA zones, or does not have to.
    #[must_use]
    pub fn fits_zones(&self, task: &str, node: &str) -> bool {
        let named = self.named(task, node);
        named.is_none_or(|(task, node)| self.aligns(task, node))
    }

    pub(crate) fn matches_labels(&self, task: usize, node: usize) -> bool {
        let labels = &self.nodes[node].labels;
        let mut wanted = self.tasks[task].task.node_affinity.iter();
        wanted.all(|(label, values)| {
            let value = labels.get(label);
            value.is_some_and(|value| values.contains(value))
        })
    }

    /// The node that a pod is on and not about to leave.
    pub(crate) fn stays(&self, task: usize) -> Option<usize> {
        let state = &self.task_states[task];
        let stays = state.status.is_active() && state.status != TaskStatus::Releasing;
        state.node.filter(|_| stays)
    }
}
