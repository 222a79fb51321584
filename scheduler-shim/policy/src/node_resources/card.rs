//! A card of which shares are given, what a pod wants of it, and what a pod has.

use apportion_abi::{Bytes, CardCapacity, SHARE_UNIT, Share};

/// The key of a shared card; unique in the session.
pub(crate) type CardKey = u32;

/// A card of which shares are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedCard {
    pub(super) held: u64,
    pub(super) releasing: u64,
    pub(super) reserved: u64,
}

impl SharedCard {
    /// Whether it is one card less to give now.
    pub(crate) fn is_occupied(self) -> bool {
        self.held + self.releasing > 0
    }

    /// How many cards more are to be had once everyone has left who is leaving.
    pub(super) fn freed(self) -> i64 {
        if self.is_occupied() {
            i64::from(self.stays() == 0)
        } else {
            -i64::from(self.reserved > 0)
        }
    }

    /// What stays or will be on it: the choice of a card must be the same before and after those have left
    /// who are leaving.
    pub(crate) fn stays(self) -> u64 {
        self.held + self.reserved
    }

    /// The part of it that stays or will be taken, of `whole`.
    pub(crate) fn fullness(self, whole: Bytes) -> f64 {
        self.stays() as f64 / whole.0.max(1) as f64
    }

    /// Whether `ask` fits beside what stays, on a card that somebody stays on.
    pub(super) fn has_room(self, whole: Bytes, ask: Bytes) -> bool {
        self.stays() > 0 && self.stays().saturating_add(ask.0) <= whole.0
    }

    /// Whether `ask` fits beside everything that is there now.
    pub(crate) fn has_room_now(self, whole: Bytes, ask: Bytes) -> bool {
        self.is_occupied() && (self.held + self.releasing).saturating_add(ask.0) <= whole.0
    }
}

/// A share of some cards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CardShareRequest {
    /// Of each.
    pub(crate) share: Share,
    /// Of how many.
    pub(crate) devices: usize,
    /// The smallest card that may be taken: on a smaller one, bytes count for more than a queue has left.
    pub(crate) smallest: Bytes,
}

impl CardShareRequest {
    /// What is taken of a card of this size; none where such a card is not for it, also because the share would be
    /// less there than the smallest that an agent gives.
    pub(crate) fn of(&self, size: Bytes) -> Option<Bytes> {
        let bytes = self.on(size);
        let is_share = bytes.0 >= SHARE_UNIT || self.share == Share::Whole;
        (self.smallest <= size && bytes <= size && is_share).then_some(bytes)
    }

    /// What is taken of a card of this size by who is there already.
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
    /// How many it has alone of each size; nothing where the cards of the node are only counted.
    pub(crate) whole: Vec<i64>,
}
