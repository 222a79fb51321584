//! The cards that another device plugin gave to pods become theirs in the ledger, so that nobody gets
//! anything of them besides: while that plugin serves the node, and after it has left, as long as its pods run.
//!
//! A part of a card, as a replica or a partition, is entered as the card: what the others do with theirs
//! is not known here. One of several such pods on a card stands for all, and the next one when it has left.

use super::*;
use crate::kubelet::{ForeignCardId, ForeignHolder, KubeletSnapshot};

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

    /// What of this node's cards another plugin calls so.
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
