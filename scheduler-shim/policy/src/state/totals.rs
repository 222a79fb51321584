//! What all tasks take together: by node, by queue and by affinity term.
//!
//! A total changes only with a task, by [`SessionTotals::remove`] and [`SessionTotals::add`], and both take the whole
//! state of the task. So the totals always are the sum over all tasks, and setting an old state again restores them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::amounts::ResourceAmounts;
use crate::charges::{burst_at, charge_at};
use crate::cluster::{Node, TaskStatus, parts_of};
use crate::inter_pod_affinity::AffinityCounts;
use crate::node_resources::{CardKey, CardSizes, HoldState, NodeResources, NodeState};
use crate::numa::NumaZones;
use crate::requests::request_on;
use crate::snapshot::ClusterSnapshot;
use crate::state::changed_nodes::ChangedNodes;
use crate::state::claim_holdings::ClaimHoldings;
use crate::task_state::TaskState;
use crate::tree::QueueTree;

/// The sums over all tasks.
#[derive(Clone, Debug)]
pub(crate) struct SessionTotals {
    nodes: Vec<NodeState>,
    queues: QueueTree,
    affinity: AffinityCounts,
    claim_holdings: ClaimHoldings,
    changed_nodes: ChangedNodes,
}

impl SessionTotals {
    /// The totals of no tasks at all.
    pub(super) fn of(facts: &ClusterSnapshot<'_>, queues: QueueTree) -> Self {
        let profiles = facts.profiles();
        let parts = Rc::new(profiles.iter().map(|profile| parts_of(profile)).collect());
        let nodes = facts.nodes().iter();
        Self {
            nodes: nodes
                .map(|node| {
                    let pinned = facts.pinned_cards(&node.name);
                    empty_node(node, &pinned, profiles, &parts)
                })
                .collect(),
            queues,
            affinity: AffinityCounts::of(facts.affinity_terms()),
            claim_holdings: ClaimHoldings::of(facts),
            changed_nodes: ChangedNodes::none_of(facts.nodes().len()),
        }
    }

    pub(crate) fn nodes(&self) -> &[NodeState] {
        &self.nodes
    }

    pub(crate) fn queues(&self) -> &QueueTree {
        &self.queues
    }

    pub(crate) fn affinity(&self) -> &AffinityCounts {
        &self.affinity
    }

    pub(super) fn claim_holdings(&self) -> &ClaimHoldings {
        &self.claim_holdings
    }

    pub(super) fn changed_nodes(&self) -> &ChangedNodes {
        &self.changed_nodes
    }

    /// Records the size class of a new card.
    pub(super) fn know_card(&mut self, node: usize, card: CardKey, class: usize) {
        self.nodes[node].sizes.know(card, class);
    }

    /// A node, while the session opens.
    pub(super) fn node_mut(&mut self, node: usize) -> &mut NodeState {
        &mut self.nodes[node]
    }

    /// The queues, while the session opens.
    pub(super) fn queues_mut(&mut self) -> &mut QueueTree {
        &mut self.queues
    }

    /// Counts what a task takes.
    pub(super) fn add(&mut self, facts: &ClusterSnapshot<'_>, task: usize, state: &TaskState) {
        self.update(facts, task, state, 1);
    }

    /// Takes what a task takes from the counts.
    pub(super) fn remove(&mut self, facts: &ClusterSnapshot<'_>, task: usize, state: &TaskState) {
        self.update(facts, task, state, -1);
    }

    fn update(&mut self, facts: &ClusterSnapshot<'_>, task: usize, state: &TaskState, count: i64) {
        for presence in state.presences() {
            let terms = facts.affinity_terms();
            self.affinity.record(terms, task, presence, count > 0);
        }
        self.claim_holdings
            .update(&state.leaves_devices, true, count);
        // A task that waits for its new place still holds the old one.
        if let Some((node, cards)) = &state.leaves {
            let request = request_on(facts, task, *node);
            self.nodes[*node].update_used(&request, cards, HoldState::Releasing, count);
            self.changed_nodes.record(*node);
        }
        let Some(node) = state.node.filter(|_| state.status.is_active()) else {
            return;
        };
        let hold = match state.status {
            TaskStatus::Releasing => HoldState::Releasing,
            TaskStatus::Pipelined => HoldState::Reserved,
            _ => HoldState::Held,
        };
        let leaves = hold == HoldState::Releasing;
        self.claim_holdings.update(&state.devices, leaves, count);
        let request = request_on(facts, task, node);
        let node_state = &mut self.nodes[node];
        node_state.update_used(&request, &state.cards, hold, count);
        self.changed_nodes.record(node);
        // The zones of a task that leaves count as free at once.
        if hold != HoldState::Releasing {
            node_state.zones.update_used(&state.zones, count);
        }
        let task_facts = facts.task(task);
        if task_facts.task.is_legacy_mig {
            let legacy = &mut node_state.legacy;
            *legacy = if count > 0 { *legacy + 1 } else { *legacy - 1 };
        }
        let job = facts.job(task_facts.job);
        if let Some(queue) = job.payer
            && state.status.is_active_allocated()
        {
            let charge = charge_at(facts, node_state, task, &state.cards);
            let charge = if count > 0 {
                charge
            } else {
                ResourceAmounts::default().minus(charge)
            };
            self.queues.charge(queue, charge, job.job.is_preemptible);
            if self.queues.has_burst_limits() {
                let burst = burst_at(facts, node_state, task, &state.cards);
                let burst = if count > 0 { burst } else { -burst };
                self.queues.charge_burst(queue, burst);
            }
        }
    }
}

fn empty_node(
    node: &Node,
    pinned: &BTreeSet<&str>,
    profiles: &[String],
    parts: &Rc<Vec<f64>>,
) -> NodeState {
    let total = NodeResources {
        cpu: node.cpu_millis,
        memory: node.memory,
        pods: node.pods,
        cards: node.card_count(),
        partitions: profiles
            .iter()
            .map(|profile| node.partitions.get(profile).copied().unwrap_or(0))
            .collect(),
    };
    NodeState {
        idle: total.clone(),
        releasing: NodeResources {
            partitions: vec![0; profiles.len()],
            ..NodeResources::default()
        },
        total,
        card_memory: node.card_memory,
        overcommit: node.overcommit,
        mig: node.mig,
        parts: Rc::clone(parts),
        shared: BTreeMap::new(),
        sizes: CardSizes::of(&node.listed, pinned),
        legacy: 0,
        zones: NumaZones::new(node.numa, node.numa_scope, node.zones.clone()),
    }
}
