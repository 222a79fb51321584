//! Records the cards that another device plugin gave to pods, so that nobody else gets any of their memory: while
//! that plugin serves the node, and after it has left, as long as its pods run.
//!
//! A part of a card, such as a replica or a MIG partition, is recorded as the whole card: the agent does not know
//! what the others do with the rest. One of several such pods on a card stands for all. When it has left, the next
//! one does.

use apportion_ledger::LedgerEvent;
use tracing::warn;

use super::state::AgentState;
use crate::kubelet::snapshot::KubeletSnapshot;

/// Records the cards of other plugins' pods in the ledger.
pub(super) fn record(state: &mut AgentState, kubelet: &KubeletSnapshot) {
    for (pod, holder) in &kubelet.others {
        if kubelet.ended.contains(pod) {
            continue;
        }
        let cards = state.cards.held_by(holder);
        let all = state.ledger.allocations();
        if cards
            .iter()
            .all(|card| all.iter().any(|of| of.grant(*card).is_some()))
        {
            continue;
        }
        let name = holder.name.clone().unwrap_or_else(|| pod.clone());
        warn!(
            pod,
            name,
            cards = cards.len(),
            "GPUs allocated by another device plugin recorded"
        );
        state.apply_quietly(LedgerEvent::TakenWhole {
            pod: pod.clone(),
            name,
            cards,
        });
    }
}
