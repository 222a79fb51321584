//! Reading and writing a card's limit.
//!
//! Both sides use the same words: the agent stores, the program loads. A query and a charge use the same
//! [`CardLimit::limits`], so a program never sees another limit than the one that applies. The limit is always a
//! whole number of [`SHARE_UNIT`](crate::SHARE_UNIT), whatever was stored: agents of earlier releases stored the
//! exact bytes of a fraction.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::layout::CardLimit;
use crate::request::whole_units;
use crate::units::Bytes;
use crate::uuid::CardUuid;

/// What the agent allows on one card, read at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSnapshot {
    /// The limit: a whole number of [`SHARE_UNIT`](crate::SHARE_UNIT).
    pub limit: Bytes,
    /// Bytes that the driver uses beyond what was claimed.
    pub overhead: Bytes,
    /// Bytes to claim for a process's first context on the card.
    pub context_reserve: Bytes,
    /// Bytes to claim for each further context; as many as for the first if unknown.
    pub further_reserve: Bytes,
    /// The card's physical memory.
    pub total: Bytes,
}

impl CardLimit {
    /// A card with its limit.
    #[must_use]
    pub fn new(uuid: CardUuid, total: Bytes, limit: Bytes, context_reserve: Bytes) -> Self {
        let card = Self {
            uuid: uuid.to_words(),
            total: total.0,
            ..Self::default()
        };
        card.set_limit(limit);
        card.set_context_reserve(context_reserve);
        card
    }

    /// The card's UUID.
    #[must_use]
    pub fn card(&self) -> CardUuid {
        CardUuid::from_words(self.uuid)
    }

    /// The limit and the overhead of each card, read once.
    #[must_use]
    pub fn limits(&self) -> LimitSnapshot {
        let context_reserve = Bytes(self.context_reserve.load(Relaxed));
        let further_reserve = match self.further_reserve.load(Relaxed) {
            0 => context_reserve,
            known => Bytes(known),
        };
        LimitSnapshot {
            limit: whole_units(Bytes(self.limit.load(Acquire))),
            overhead: Bytes(self.overhead.load(Acquire)),
            context_reserve,
            further_reserve,
            total: Bytes(self.total),
        }
    }

    /// Counts the agent's changes to this card.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Changes the limit; programs see it at their next charge or query.
    pub fn set_limit(&self, limit: Bytes) {
        self.limit.store(limit.0, Release);
        self.generation.fetch_add(1, AcqRel);
    }

    /// Publishes how much the driver uses beyond what was claimed.
    pub fn set_overhead(&self, overhead: Bytes) {
        if self.overhead.swap(overhead.0, AcqRel) != overhead.0 {
            self.generation.fetch_add(1, AcqRel);
        }
    }

    /// Publishes how much a process's first context on this card will claim.
    pub fn set_context_reserve(&self, reserve: Bytes) {
        self.context_reserve.store(reserve.0, Relaxed);
        self.generation.fetch_add(1, AcqRel);
    }

    /// Publishes how much each further context of a process on this card will claim; `None` if unknown.
    pub fn set_further_reserve(&self, reserve: Option<Bytes>) {
        let reserve = reserve.unwrap_or_default();
        self.further_reserve.store(reserve.0, Relaxed);
        self.generation.fetch_add(1, AcqRel);
    }
}
