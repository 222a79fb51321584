//! The agents of the nodes as they last spoke: cards one by one, and who holds what.
//!
//! An agent's word about its node goes before any object's. One that is silent keeps its pods, and gets
//! no new ones.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_abi::Bytes;

/// One card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentCard {
    pub(crate) uuid: String,
    /// What can be given of it in all.
    pub(crate) allocatable: Bytes,
    /// What processes of no allocation use.
    pub(crate) unmanaged: Bytes,
    /// Whether it can be given out.
    pub(crate) is_healthy: bool,
}

/// How far an allocation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentAllocationState {
    /// Not committed yet.
    Reserved,
    /// Committed.
    Allocated,
    /// Given back, while its processes live.
    Draining,
}

/// One allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentAllocation {
    pub(crate) id: String,
    /// The UID of the pod that it is for; nothing where no pod is.
    pub(crate) uid: Option<String>,
    pub(crate) name: String,
    pub(crate) stage: AgentAllocationState,
    pub(crate) shares: Vec<(String, u64)>,
}

/// All that an agent says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AgentStatus {
    pub(crate) cards: Vec<AgentCard>,
    pub(crate) held: Vec<AgentAllocation>,
}

impl AgentStatus {
    /// The cards that can be given out.
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

    /// What can surely be given of any of its cards: the labels of a node have room for one size.
    pub(crate) fn card_memory(&self) -> Option<Bytes> {
        self.healthy().map(|card| card.allocatable).min()
    }
}

/// An agent.
#[derive(Clone, Debug)]
pub(crate) struct TrackedAgent {
    pub(crate) said: AgentStatus,
    /// Whether it answers.
    pub(crate) is_here: bool,
    /// When it was lost; when it was heard for the first time of late.
    pub(crate) since: Duration,
    /// Whether it ever said something.
    pub(crate) was_heard: bool,
}

/// All agents, by node.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrackedAgents(BTreeMap<String, TrackedAgent>);

impl TrackedAgents {
    /// Notes what one says; whether that is new.
    pub(crate) fn said(&mut self, now: Duration, node: &str, said: AgentStatus) -> bool {
        let is_here = true;
        let known = self.0.get(node);
        if known.is_some_and(|known| known.is_here && known.said == said) {
            return false;
        }
        let since = known.filter(|known| known.is_here);
        let agent = TrackedAgent {
            said,
            is_here,
            since: since.map_or(now, |known| known.since),
            was_heard: true,
        };
        self.0.insert(node.to_owned(), agent);
        true
    }

    /// The pods whose allocations an agent gave back between its last word and this one. It does so when it knows that
    /// a pod has ended, which the API server says later. One that was away in between may have lost its ledger instead.
    pub(crate) fn given_back(&self, node: &str, said: &AgentStatus) -> Vec<String> {
        let before = self.of(node).filter(|agent| agent.is_here);
        let before = before.into_iter().flat_map(|agent| &agent.said.held);
        let was_committed = before.filter(|held| held.stage != AgentAllocationState::Reserved);
        let uids = was_committed.filter_map(|held| held.uid.as_deref());
        let gone = uids.filter(|uid| said.of_pod(uid).is_none());
        gone.map(str::to_owned).collect()
    }

    /// Notes that one is silent.
    pub(crate) fn lost(&mut self, now: Duration, node: &str) {
        match self.0.get_mut(node) {
            Some(agent) if agent.is_here => {
                agent.is_here = false;
                agent.since = now;
            }
            Some(_) => {}
            None => {
                let said = AgentStatus::default();
                let is_here = false;
                let agent = TrackedAgent {
                    said,
                    is_here,
                    since: now,
                    was_heard: false,
                };
                self.0.insert(node.to_owned(), agent);
            }
        }
    }

    /// Whether one is known that never said anything.
    pub(crate) fn is_anybody_unheard(&self) -> bool {
        self.0.values().any(|agent| !agent.was_heard)
    }

    /// Forgets one.
    pub(crate) fn gone(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// The agent of a node.
    pub(crate) fn of(&self, node: &str) -> Option<&TrackedAgent> {
        self.0.get(node)
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&String, &TrackedAgent)> {
        self.0.iter()
    }

    /// The allocations for a pod, wherever they are.
    pub(crate) fn of_pod(&self, uid: &str) -> Vec<(String, AgentAllocation)> {
        let found = self.0.iter().filter_map(|(node, agent)| {
            let held = agent.said.of_pod(uid)?;
            Some((node.clone(), held.clone()))
        });
        found.collect()
    }
}
