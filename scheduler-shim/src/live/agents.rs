//! The last status of each node's agent: its cards, and its allocations.
//!
//! For its node, an agent's status takes precedence over any API object. A node whose agent is away keeps its pods
//! and gets no new ones.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_abi::{Bytes, OvercommitFactor};

use apportion_model::cards::CardShare;

/// One card, as its agent reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentCard {
    pub(crate) uuid: String,
    /// Memory for allocations in total.
    pub(crate) allocatable: Bytes,
    /// Memory used by processes without an allocation.
    pub(crate) unmanaged: Bytes,
    /// Memory used above what was guaranteed.
    pub(crate) burst: Bytes,
    /// Whether it may be allocated.
    pub(crate) is_healthy: bool,
}

/// The state of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentAllocationState {
    Reserved,
    Allocated,
    /// Released, but its processes still run.
    Draining,
}

/// Whether the programs of an allocation sleep because its scheduler asked for it. Those that sleep for another reason
/// count as awake: what is guaranteed to them stays reserved, and their agent wakes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ShareSuspension {
    #[default]
    Awake,
    FallingAsleep,
    /// What is guaranteed to them is free for others.
    Asleep,
}

/// One allocation in an agent's ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentAllocation {
    pub(crate) id: String,
    /// UID of its pod; `None` if it has no pod.
    pub(crate) uid: Option<String>,
    pub(crate) name: String,
    pub(crate) stage: AgentAllocationState,
    pub(crate) suspension: ShareSuspension,
    pub(crate) shares: Vec<CardShare>,
}

/// The status that an agent reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AgentStatus {
    /// How far the limits on a card may exceed it; `None` if an older agent does not say.
    pub(crate) overcommit: Option<OvercommitFactor>,
    /// Whether its driver can put programs to sleep.
    pub(crate) can_suspend: bool,
    pub(crate) cards: Vec<AgentCard>,
    pub(crate) held: Vec<AgentAllocation>,
}

impl AgentStatus {
    /// The cards that may be allocated.
    pub(crate) fn healthy(&self) -> impl Iterator<Item = &AgentCard> {
        self.cards.iter().filter(|card| card.is_healthy)
    }

    /// A card by UUID.
    pub(crate) fn card(&self, uuid: &str) -> Option<&AgentCard> {
        self.cards.iter().find(|card| card.uuid == uuid)
    }

    /// The allocation for a pod.
    pub(crate) fn of_pod(&self, uid: &str) -> Option<&AgentAllocation> {
        let mut held = self.held.iter();
        held.find(|held| held.uid.as_deref() == Some(uid))
    }

    /// The allocatable memory of the smallest healthy card. The labels of a node have room for one size only.
    pub(crate) fn card_memory(&self) -> Option<Bytes> {
        self.healthy().map(|card| card.allocatable).min()
    }
}

/// An agent's last status, and whether it is connected.
#[derive(Clone, Debug)]
pub(crate) struct TrackedAgent {
    pub(crate) status: AgentStatus,
    pub(crate) is_here: bool,
    /// When it was lost, or when it last came back.
    pub(crate) since: Duration,
    /// Whether it ever reported a status.
    pub(crate) has_reported: bool,
}

/// All agents, by node.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrackedAgents(BTreeMap<String, TrackedAgent>);

impl TrackedAgents {
    /// Stores a status. Returns whether anything changed.
    pub(crate) fn update(&mut self, now: Duration, node: &str, status: AgentStatus) -> bool {
        let is_here = true;
        let known = self.0.get(node);
        if known.is_some_and(|known| known.is_here && known.status == status) {
            return false;
        }
        let since = known.filter(|known| known.is_here);
        let agent = TrackedAgent {
            status,
            is_here,
            since: since.map_or(now, |known| known.since),
            has_reported: true,
        };
        self.0.insert(node.to_owned(), agent);
        true
    }

    /// The pods whose allocations are gone since the last status. The agent releases them when it knows that the pod
    /// has ended; the API server shows that later. An agent that was away in between does not count: it may have lost
    /// its ledger.
    pub(crate) fn released_pods(&self, node: &str, status: &AgentStatus) -> Vec<String> {
        let before = self.of(node).filter(|agent| agent.is_here);
        let before = before.into_iter().flat_map(|agent| &agent.status.held);
        let was_committed = before.filter(|held| held.stage != AgentAllocationState::Reserved);
        let uids = was_committed.filter_map(|held| held.uid.as_deref());
        let gone = uids.filter(|uid| status.of_pod(uid).is_none());
        gone.map(str::to_owned).collect()
    }

    /// Marks a node's agent as lost.
    pub(crate) fn lost(&mut self, now: Duration, node: &str) {
        match self.0.get_mut(node) {
            Some(agent) if agent.is_here => {
                agent.is_here = false;
                agent.since = now;
            }
            Some(_) => {}
            None => {
                let status = AgentStatus::default();
                let is_here = false;
                let agent = TrackedAgent {
                    status,
                    is_here,
                    since: now,
                    has_reported: false,
                };
                self.0.insert(node.to_owned(), agent);
            }
        }
    }

    /// Whether any known agent has never reported.
    pub(crate) fn awaits_first_report(&self) -> bool {
        self.0.values().any(|agent| !agent.has_reported)
    }

    /// Removes a node's agent.
    pub(crate) fn gone(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// The agent of a node.
    pub(crate) fn of(&self, node: &str) -> Option<&TrackedAgent> {
        self.0.get(node)
    }

    /// All agents with their nodes.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&String, &TrackedAgent)> {
        self.0.iter()
    }

    /// The allocations of a pod on all nodes.
    pub(crate) fn of_pod(&self, uid: &str) -> Vec<(String, AgentAllocation)> {
        let found = self.0.iter().filter_map(|(node, agent)| {
            let held = agent.status.of_pod(uid)?;
            Some((node.clone(), held.clone()))
        });
        found.collect()
    }
}
