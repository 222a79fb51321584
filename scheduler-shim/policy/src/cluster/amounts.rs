//! What pods ask for as amounts of resources: cards are numbers, and a share in bytes is a part of some card.

use apportion_abi::{Bytes, CardCapacity, Share, whole_units};

use super::{Task, TaskGpuRequest};
use crate::amounts::ResourceAmounts;

/// How many cards a partition counts for: the number before the `g` of its profile.
pub(crate) fn parts_of(profile: &str) -> f64 {
    let name = profile.rsplit('-').next().unwrap_or(profile);
    let parts = name.split_once('g').map(|(parts, _)| parts.parse());
    parts.and_then(Result::ok).unwrap_or(0.0)
}

impl TaskGpuRequest {
    /// Whether it is for any part of a card.
    #[must_use]
    pub fn is_some(&self) -> bool {
        match self {
            Self::None => false,
            Self::Whole(count) => *count > 0,
            Self::Shared { .. } => true,
            Self::Partitions(partitions) => partitions.values().any(|count| *count > 0),
        }
    }

    /// How many cards it counts for, if a card has this memory.
    #[must_use]
    pub fn count(&self, card: Bytes) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Whole(count) => *count as f64,
            Self::Shared { share, devices } => part_of(*share, card) * f64::from(*devices),
            Self::Partitions(partitions) => (partitions.iter())
                .map(|(profile, count)| parts_of(profile) * *count as f64)
                .sum(),
        }
    }
}

/// A share of a card of this size, as a part of the card.
fn part_of(share: Share, card: Bytes) -> f64 {
    match share {
        Share::Whole => 1.0,
        Share::Fraction(fraction) => f64::from(fraction.parts_per_billion()) / 1e9,
        Share::Memory(bytes) => bytes.0 as f64 / card.0.max(1) as f64,
    }
}

/// Whether a share, or its limit, counts for a smaller part of a larger card.
pub(crate) fn is_of_bytes(share: Share, limit: Option<Share>) -> bool {
    let mut shares = [Some(share), limit].into_iter().flatten();
    shares.any(|share| matches!(share, Share::Memory(_)))
}

/// How much of a card of this size a limit is: an agent caps it at the card.
#[must_use]
pub fn limit_of(limit: Share, card: Bytes) -> Bytes {
    let capacity = CardCapacity {
        total: card,
        reserved: Bytes::ZERO,
    };
    limit.bytes_of(capacity).min(whole_units(card))
}

impl Task {
    /// Its limit on a card of this size of which it takes `bytes`, if that is more.
    #[must_use]
    pub fn limit_above(&self, card: Bytes, bytes: Bytes) -> Option<Bytes> {
        let limit = limit_of(self.limit?, card);
        (limit > bytes).then_some(limit)
    }

    /// What it adds to the limits on a card of this size of which it takes `bytes`.
    #[must_use]
    pub fn ceiling(&self, card: Bytes, bytes: Bytes) -> Bytes {
        let own = || self.limit_above(card, bytes).unwrap_or(bytes);
        self.foreign_limits.unwrap_or_else(own)
    }

    /// By how much its limit exceeds its share on each card of this size, as a part of the card.
    pub(crate) fn burst_on(&self, card: Bytes) -> f64 {
        match (&self.cards, self.limit) {
            (TaskGpuRequest::Shared { share, .. }, Some(limit)) => {
                let limit = part_of(limit, card).min(1.0);
                (limit - part_of(*share, card)).max(0.0)
            }
            (_, None)
            | (
                TaskGpuRequest::None | TaskGpuRequest::Whole(_) | TaskGpuRequest::Partitions(_),
                Some(_),
            ) => 0.0,
        }
    }

    /// How many cards it may use above those that it is charged for, if a card has this memory.
    #[must_use]
    pub fn burst(&self, card: Bytes) -> f64 {
        match self.cards {
            TaskGpuRequest::Shared { devices, .. } => self.burst_on(card) * f64::from(devices),
            TaskGpuRequest::None | TaskGpuRequest::Whole(_) | TaskGpuRequest::Partitions(_) => 0.0,
        }
    }

    /// What it is charged on cards with this memory.
    #[must_use]
    pub fn amounts(&self, card: Bytes) -> ResourceAmounts {
        ResourceAmounts::new(
            self.cpu_millis as f64,
            self.memory as f64,
            self.cards.count(card),
        )
    }

    /// Whether it wants any part of a card.
    #[must_use]
    pub fn wants_cards(&self) -> bool {
        self.cards.is_some()
    }
}
