//! The agent's state in the messages of the API.

use apportion_ledger::{Allocation, Ledger};
use apportion_proto::v1;

use super::accounts::AccountTable;
use super::cards::CardInventory;
use super::context_cost::ContextCosts;
use crate::processes::members::AllocationMembers;
use crate::telemetry::view;

/// What a picture is made of.
#[derive(Clone, Copy)]
pub(super) struct StatePicture<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) cards: &'a CardInventory,
    pub(super) costs: &'a ContextCosts,
    pub(super) accounts: &'a AccountTable,
    pub(super) members: &'a AllocationMembers,
}

impl StatePicture<'_> {
    /// All cards and allocations.
    pub(super) fn list(&self, node: v1::Node) -> v1::ListReply {
        let allocations = self.ledger.allocations().into_iter();
        let sampled = self.cards.sampled();
        v1::ListReply {
            node: Some(node),
            cards: self.cards(),
            allocations: allocations
                .map(|allocation| self.allocation(allocation))
                .collect(),
            sampled_at_ms: sampled.map_or(0, |sampled| sampled.clock.0),
        }
    }

    /// One allocation with its processes.
    pub(super) fn allocation(&self, allocation: &Allocation) -> v1::Allocation {
        let id = &allocation.id;
        let mut processes = Vec::new();
        for process in self.members.of(id) {
            let readings = self.cards.readings();
            let uses = readings.filter_map(|card| self.accounts.process_use(id, process, card));
            processes.push(view::process(process, uses.collect()));
        }
        view::allocation(allocation, self.accounts.get(id), processes)
    }

    fn cards(&self) -> Vec<v1::Card> {
        let mut cards = Vec::new();
        for found in self.cards.all() {
            let cost = self.costs.of(Some(&found.model));
            let reading = self.cards.reading(found.uuid);
            cards.push(view::card(found, reading, self.ledger, cost.first));
        }
        // CUDA does not count a lost card, so the ordinals are unknown.
        if cards
            .iter()
            .any(|card| card.health() == v1::CardHealth::Lost)
        {
            cards.iter_mut().for_each(|card| card.cuda_ordinal = None);
        }
        cards
    }
}
