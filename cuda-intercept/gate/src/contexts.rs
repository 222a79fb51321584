//! Contexts: each costs a reserve, and its end is the end of everything that was allocated in it.
//!
//! A driver may give a new context the handle of one that just ended, so memory refers to a context by
//! a number of our own that is never used twice.

use crate::Card;
use crate::map::Map;

/// A context of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId(u64);

impl ContextId {
    pub(crate) const fn first() -> Self {
        Self(1)
    }
}

/// A context that is ending: taken out of the books, not yet given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub(crate) handle: u64,
    pub(crate) id: ContextId,
    pub(crate) entry: Entry,
}

impl Ended {
    /// The card that the context is on.
    #[must_use]
    pub const fn card(&self) -> Card {
        self.entry.card
    }

    /// The context's own reserve.
    #[must_use]
    pub const fn reserve(&self) -> u64 {
        self.entry.reserve
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    card: Card,
    reserve: u64,
    device: i32,
    is_primary: bool,
}

#[derive(Debug)]
pub(crate) struct Contexts {
    by_handle: Map<u64, (ContextId, Entry)>,
    next: u64,
}

impl Default for Contexts {
    fn default() -> Self {
        Self {
            by_handle: Map::default(),
            next: ContextId::first().0,
        }
    }
}

impl Contexts {
    /// Enters a context. False if it is there already (or cannot be entered).
    pub(crate) fn open(
        &mut self,
        handle: u64,
        (card, device): (Card, i32),
        reserve: u64,
        is_primary: bool,
    ) -> bool {
        if let Some((_, known)) = self.by_handle.get_mut(handle) {
            known.is_primary |= is_primary;
            return false;
        }
        let entry = Entry {
            card,
            reserve,
            device,
            is_primary,
        };
        let id = ContextId(self.next);
        self.next = self.next.wrapping_add(1);
        self.by_handle.enter(handle, (id, entry))
    }

    pub(crate) fn find(&self, handle: u64) -> Option<(ContextId, Card)> {
        self.by_handle
            .get(handle)
            .map(|(id, entry)| (*id, entry.card))
    }

    /// The handle of a device's primary context.
    pub(crate) fn primary(&self, device: i32) -> Option<u64> {
        let mut all = self.by_handle.iter();
        all.find(|(_, (_, entry))| entry.is_primary && entry.device == device)
            .map(|(handle, _)| handle)
    }

    /// The device that a context is on.
    pub(crate) fn device(&self, handle: u64) -> Option<i32> {
        self.by_handle.get(handle).map(|(_, entry)| entry.device)
    }

    pub(crate) fn take(&mut self, handle: u64) -> Option<Ended> {
        let (id, entry) = self.by_handle.remove(handle)?;
        Some(Ended { handle, id, entry })
    }

    pub(crate) fn put_back(&mut self, ended: Ended) {
        self.by_handle.enter(ended.handle, (ended.id, ended.entry));
    }

    /// The sum of the reserves on a card.
    pub(crate) fn reserves(&self, card: Card) -> u64 {
        let here = self
            .by_handle
            .iter()
            .filter(|(_, (_, entry))| entry.card == card);
        here.map(|(_, (_, entry))| entry.reserve).sum()
    }
}
