//! A shared card, what a pod asks of it, and what a pod has.

use apportion_abi::{Bytes, CardCapacity, SHARE_UNIT, Share};

use super::HoldState;
use crate::cluster::limit_of;

/// The key of a shared card; unique in the session.
pub(crate) type CardKey = u32;

/// A card that pods share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedCard {
    /// What pods take of its memory.
    pub(super) memory: HeldSums,
    /// What their limits add up to.
    pub(super) limits: HeldSums,
}

/// Three sums of bytes, by how pods hold them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeldSums {
    held: u64,
    releasing: u64,
    reserved: u64,
}

impl HeldSums {
    pub(super) fn update(&mut self, bytes: Bytes, hold: HoldState, count: i64) {
        let sum = match hold {
            HoldState::Held => &mut self.held,
            HoldState::Releasing => &mut self.releasing,
            HoldState::Reserved => &mut self.reserved,
        };
        *sum = if count > 0 {
            sum.saturating_add(bytes.0)
        } else {
            sum.saturating_sub(bytes.0)
        };
    }

    /// What is there now.
    fn here(self) -> u64 {
        self.held.saturating_add(self.releasing)
    }

    /// What stays or will be there.
    fn stays(self) -> u64 {
        self.held.saturating_add(self.reserved)
    }
}

/// What a pod asks of one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CardAsk {
    /// What it takes.
    pub(crate) bytes: Bytes,
    /// Its limit and what the limits on the card may add up to, if that is bounded for it.
    pub(super) limit: Option<(Bytes, Bytes)>,
}

impl CardAsk {
    fn fits_limits(self, others: u64) -> bool {
        let sum = |limit: Bytes| others.saturating_add(limit.0);
        self.limit
            .is_none_or(|(limit, bound)| sum(limit) <= bound.0)
    }
}

impl SharedCard {
    /// Whether pods hold any of it now, so that it is no idle card.
    pub(crate) fn is_occupied(self) -> bool {
        self.here() > 0
    }

    /// What pods hold of it now.
    pub(super) fn here(self) -> u64 {
        self.memory.here()
    }

    /// What is being released and not reserved.
    pub(super) fn leaves(self) -> u64 {
        self.memory.releasing.saturating_sub(self.memory.reserved)
    }

    /// How many more whole cards there are when all leaving pods are gone.
    pub(super) fn freed(self) -> i64 {
        if self.is_occupied() {
            i64::from(self.stays() == 0)
        } else {
            -i64::from(self.memory.reserved > 0)
        }
    }

    /// What stays or will be on it. The choice of a card must be the same before and after the leaving pods are
    /// gone.
    pub(crate) fn stays(self) -> u64 {
        self.memory.stays()
    }

    /// The part of `whole` that stays or will be taken.
    pub(crate) fn fullness(self, whole: Bytes) -> f64 {
        self.stays() as f64 / whole.0.max(1) as f64
    }

    /// Whether `ask` fits beside what stays, on a card where something stays.
    pub(super) fn fits_when_freed(self, whole: Bytes, ask: CardAsk) -> bool {
        self.stays() > 0
            && self.stays().saturating_add(ask.bytes.0) <= whole.0
            && ask.fits_limits(self.limits.stays())
    }

    /// Whether `ask` fits beside everything that is there now.
    pub(crate) fn fits_now(self, whole: Bytes, ask: CardAsk) -> bool {
        self.is_occupied()
            && self.here().saturating_add(ask.bytes.0) <= whole.0
            && ask.fits_limits(self.limits.here())
    }
}

/// A share of some cards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CardShareRequest {
    /// The share of each.
    pub(crate) share: Share,
    /// How much of each it may use, if that is more.
    pub(crate) limit: Option<Share>,
    /// What the limits of the shares that this stands for add up to, if it is no pod's.
    pub(crate) foreign_limits: Option<Bytes>,
    /// The number of cards.
    pub(crate) devices: usize,
    /// The smallest card that may be used: on a smaller one, bytes count for more than a queue has left.
    pub(crate) smallest: Bytes,
    /// The size class of the node that it must have, if it is pinned to a card.
    pub(crate) only: Option<usize>,
}

impl CardShareRequest {
    /// Whether it may go to cards of a size class.
    pub(super) fn takes(&self, class: usize) -> bool {
        self.only.is_none_or(|only| only == class)
    }

    /// What is taken of a card of this size; `None` if such a card can't be used, also because the share would be
    /// less there than the smallest that an agent gives.
    pub(crate) fn of(&self, size: Bytes) -> Option<Bytes> {
        let bytes = self.on(size);
        let is_share = bytes.0 >= SHARE_UNIT || self.share == Share::Whole;
        (self.smallest <= size && bytes <= size && is_share).then_some(bytes)
    }

    /// What a pod that is already on a card of this size takes of it.
    pub(crate) fn on(&self, size: Bytes) -> Bytes {
        let capacity = CardCapacity {
            total: size,
            reserved: Bytes::ZERO,
        };
        Bytes(self.share.bytes_of(capacity).0.max(1))
    }

    /// What it adds to the limits on a card of this size.
    pub(crate) fn ceiling(&self, size: Bytes) -> Bytes {
        let limit = self.limit.map(|limit| limit_of(limit, size));
        let own = || limit.unwrap_or_default().max(self.on(size));
        self.foreign_limits.unwrap_or_else(own)
    }
}

/// The cards that a pod has of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CardAssignment {
    /// Those that it shares.
    pub(crate) shared: Vec<CardKey>,
    /// How many it has alone, by size class; empty if the cards of the node are only counted.
    pub(crate) whole: Vec<i64>,
}
