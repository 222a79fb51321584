//! Agents that refused a pod while programs used more than they are guaranteed.
//!
//! Only guarantees count for the policy: what a program uses above its guarantee may be free again at any time, and the
//! agent knows best. So a pod is first sent where its guarantee fits beside the others. If the agent refuses it, what is
//! used above guarantees there counts as held for a while. Then the pod goes to another node if one has room, instead of
//! asking the same agent for ever, and afterwards the agent is asked again.
//!
//! An agent that calls the memory in does not refuse: it is asked again after a second.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_abi::Bytes;

use super::agents::TrackedAgents;

/// How long a refusal counts.
const FOR: Duration = Duration::from_secs(30);

/// Until when the refusal of each node counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct BurstRefusals(BTreeMap<String, Duration>);

impl BurstRefusals {
    /// The agent of this node refused a pod. The refusal counts if programs use more there than they are guaranteed.
    pub(crate) fn add(&mut self, now: Duration, node: &str, agents: &TrackedAgents) {
        self.0.retain(|_, until| now < *until);
        let status = agents.of(node).map(|agent| &agent.status);
        let mut cards = status.into_iter().flat_map(|status| &status.cards);
        if cards.any(|card| card.burst > Bytes::ZERO) {
            self.0.insert(node.to_owned(), now + FOR);
        }
    }

    /// The agent of this node calls in what is used above guarantees.
    pub(crate) fn forget(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// Whether what is used above guarantees on this node counts as held.
    pub(crate) fn counts(&self, now: Duration, node: &str) -> bool {
        self.0.get(node).is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::agents::{AgentCard, AgentStatus};

    #[test]
    fn a_refusal_counts_for_a_while_and_only_where_somebody_bursts() {
        let status = |burst| AgentStatus {
            can_suspend: false,
            overcommit: None,
            cards: vec![AgentCard {
                uuid: "GPU-1".to_owned(),
                allocatable: Bytes(1 << 30),
                unmanaged: Bytes::ZERO,
                burst: Bytes(burst),
                is_healthy: true,
            }],
            held: Vec::new(),
        };
        let mut agents = TrackedAgents::default();
        agents.update(Duration::ZERO, "busy", status(1));
        agents.update(Duration::ZERO, "quiet", status(0));
        let mut refusals = BurstRefusals::default();
        for node in ["busy", "quiet", "unknown"] {
            refusals.add(Duration::ZERO, node, &agents);
        }
        assert!(refusals.counts(Duration::ZERO, "busy"));
        assert!(!refusals.counts(FOR, "busy"));
        refusals.forget("busy");
        assert!(!refusals.counts(Duration::ZERO, "busy"));
        assert!(!refusals.counts(Duration::ZERO, "quiet"));
        assert!(!refusals.counts(Duration::ZERO, "unknown"));
    }
}
