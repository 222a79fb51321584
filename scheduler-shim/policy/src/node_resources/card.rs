//! A shared card, what a pod asks of it, and what a pod has.

use apportion_abi::{Bytes, CardCapacity, SHARE_UNIT, Share};

/// The key of a shared card; unique in the session.
pub(crate) type CardKey = u32;

/// A card that pods share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedCard {
    pub(super) held: u64,
    pub(super) releasing: u64,
    pub(super) reserved: u64,
}

impl SharedCard {
    /// Whether pods hold any of it now, so that it is no idle card.
    pub(crate) fn is_occupied(self) -> bool {
        self.held + self.releasing > 0
    }

    /// How many more whole cards there are when all leaving pods are gone.
    pub(super) fn freed(self) -> i64 {
        if self.is_occupied() {
            i64::from(self.stays() == 0)
        } else {
            -i64::from(self.reserved > 0)
        }
    }

    /// What stays or will be on it. The choice of a card must be the same before and after the leaving pods are
    /// gone.
    pub(crate) fn stays(self) -> u64 {
        self.held + self.reserved
    }

    /// The part of `whole` that stays or will be taken.
    pub(crate) fn fullness(self, whole: Bytes) -> f64 {
        self.stays() as f64 / whole.0.max(1) as f64
    }

    /// Whether `ask` fits beside what stays, on a card where something stays.
    pub(super) fn fits_when_freed(self, whole: Bytes, ask: Bytes) -> bool {
        self.stays() > 0 && self.stays().saturating_add(ask.0) <= whole.0
    }

    /// Whether `ask` fits beside everything that is there now.
    pub(crate) fn fits_now(self, whole: Bytes, ask: Bytes) -> bool {
        self.is_occupied() && (self.held + self.releasing).saturating_add(ask.0) <= whole.0
    }
}

/// A share of some cards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CardShareRequest {
    /// The share of each.
    pub(crate) share: Share,
    /// The number of cards.
    pub(crate) devices: usize,
    /// The smallest card that may be used: on a smaller one, bytes count for more than a queue has left.
    pub(crate) smallest: Bytes,
}

impl CardShareRequest {
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
}

/// The cards that a pod has of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CardAssignment {
    /// Those that it shares.
    pub(crate) shared: Vec<CardKey>,
    /// How many it has alone, by size class; empty if the cards of the node are only counted.
    pub(crate) whole: Vec<i64>,
}
