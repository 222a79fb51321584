//! Records the cards that another device plugin gave to pods, so that nobody else gets any of their memory: while
//! that plugin serves the node, and after it has left, as long as its pods run.
//!
//! A part of a card, such as a replica or a MIG partition, is recorded as the whole card: the agent does not know
//! what the others do with the rest. One of several such pods on a card stands for all. When it has left, the next
//! one does.

use super::*;
use crate::kubelet::foreign_holders::{ForeignCardId, ForeignHolder};
use crate::kubelet::snapshot::KubeletSnapshot;

impl NodeAgent {
    pub(super) fn others_seen(&mut self, seen: &KubeletSnapshot) {
        for (pod, holder) in &seen.others {
            if seen.ended.contains(pod) {
                continue;
            }
            let cards = self.cards_named(holder);
            let all = self.ledger.allocations();
            let is_booked = |card: &CardUuid| all.iter().any(|of| of.grant(*card).is_some());
            if cards.iter().all(is_booked) {
                continue;
            }
            let name = holder.name.clone().unwrap_or_else(|| pod.clone());
            warn!(
                pod,
                name,
                cards = cards.len(),
                "GPUs allocated by another device plugin recorded"
            );
            self.apply_quietly(LedgerEvent::TakenWhole {
                pod: pod.clone(),
                name,
                cards,
            });
        }
    }

    /// The cards of this node with the other plugin's ids.
    fn cards_named(&self, holder: &ForeignHolder) -> Vec<CardUuid> {
        let card = |name: &ForeignCardId| {
            let mut cards = self.driver.cards.iter();
            let found = cards.find(|found| match name {
                ForeignCardId::Uuid(uuid) => found.uuid == *uuid,
                ForeignCardId::Minor(minor) => found.minor == Some(*minor),
            });
            found.map(|found| found.uuid)
        };
        holder.cards.iter().filter_map(card).collect()
    }
}
