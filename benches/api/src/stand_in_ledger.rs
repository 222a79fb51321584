//! The ledger of one stand-in: its cards and their allocations.
//!
//! As an agent does, it accepts what fits, refuses what does not, and answers a repeated idempotency key with the same
//! allocation.

use apportion_proto::v1;

/// The memory of a stand-in's card.
const CARD: u64 = 80 << 30;

/// A ledger of idle cards.
pub(crate) fn idle(node: usize, cards: usize) -> v1::ListReply {
    v1::ListReply {
        cards: (0..cards)
            .map(|index| v1::Card {
                uuid: format!("GPU-{node:08x}-0000-0000-0000-{index:012x}"),
                model: "NVIDIA H100 80GB HBM3".to_owned(),
                index: u32::try_from(index).unwrap_or(0),
                total_bytes: CARD,
                allocatable_bytes: CARD,
                free_bytes: CARD,
                health: v1::CardHealth::Healthy.into(),
                ..v1::Card::default()
            })
            .collect(),
        ..v1::ListReply::default()
    }
}

/// Adds an allocation, or returns the shortfall.
pub(crate) fn allocate(ledger: &mut v1::ListReply, ask: v1::AllocateRequest) -> v1::AllocateReply {
    use v1::allocate_reply::Result::{Allocation, Shortfall};
    let mut known = ledger.allocations.iter();
    let result = match known.find(|known| known.idempotency_key == ask.idempotency_key) {
        Some(known) => Allocation(known.clone()),
        None => match shortfall(ledger, &ask.shares) {
            Some(shortfall) => Shortfall(shortfall),
            None => Allocation(enter(ledger, ask)),
        },
    };
    v1::AllocateReply {
        result: Some(result),
    }
}

fn shortfall(ledger: &v1::ListReply, shares: &[v1::Share]) -> Option<v1::Shortfall> {
    shares.iter().find_map(|share| {
        let card = ledger.cards.iter().find(|card| card.uuid == share.card);
        let free_bytes = card.map_or(0, |card| card.free_bytes);
        (share.bytes > free_bytes).then(|| v1::Shortfall {
            card: share.card.clone(),
            asked_bytes: share.bytes,
            free_bytes,
            sentence: format!("asked for {} and {free_bytes} are free", share.bytes),
            ..v1::Shortfall::default()
        })
    })
}

fn enter(ledger: &mut v1::ListReply, ask: v1::AllocateRequest) -> v1::Allocation {
    let made = v1::Allocation {
        id: format!("of-{}", ask.idempotency_key),
        name: ask.name,
        state: v1::AllocationState::Reserved.into(),
        idempotency_key: ask.idempotency_key,
        grants: ask
            .shares
            .into_iter()
            .map(|share| v1::Grant {
                card: share.card,
                limit_bytes: share.bytes,
                ..v1::Grant::default()
            })
            .collect(),
        ..v1::Allocation::default()
    };
    ledger.allocations.push(made.clone());
    count(ledger);
    made
}

pub(crate) fn commit(ledger: &mut v1::ListReply, ask: v1::CommitRequest) -> Option<v1::Allocation> {
    let mut known = ledger.allocations.iter_mut();
    let known = known.find(|known| known.id == ask.id)?;
    known.set_state(v1::AllocationState::Allocated);
    known.holder = ask.holder;
    Some(known.clone())
}

pub(crate) fn release(ledger: &mut v1::ListReply, id: &str) {
    ledger.allocations.retain(|known| known.id != id);
    count(ledger);
}

/// Sums up the grants of each card.
fn count(ledger: &mut v1::ListReply) {
    let grants = ledger.allocations.iter().flat_map(|one| &one.grants);
    for card in &mut ledger.cards {
        let own = grants.clone().filter(|grant| grant.card == card.uuid);
        card.granted_bytes = own.map(|grant| grant.limit_bytes).sum();
        card.free_bytes = card.allocatable_bytes.saturating_sub(card.granted_bytes);
    }
}
