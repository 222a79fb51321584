//! Contexts: each costs a reserve, and everything that was allocated in it ends with it.
//!
//! A driver may give a new context the handle of one that just ended. So memory refers to a context by a number of
//! our own that is never reused.
//!
//! A release of the primary context seldom ends it, and which of several concurrent releases ends it is known only
//! afterwards. So a context stays recorded while the driver is asked to end it, for other threads that use it
//! meanwhile, until one of the threads has seen that it is gone. A new context with the same handle takes its place,
//! and the old one is set aside until then.
//!
//! The first context of a process on a card costs more than each further one, because part of it belongs to the
//! process. When the driver frees which part is unknown. So the large reserve stays until the last context on the
//! card is gone, whichever was first.
//!
//! Threads that retain one primary context at once get one context, and it is charged once. They take turns, and the
//! second one finds it there. A thread that was killed in the driver never gives its turn back, so a thread that has
//! waited long enough takes the turn over.

use crate::Card;
use crate::fallible_map::FallibleMap;

/// A context of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextId(u64);

impl ContextId {
    pub(crate) const fn first() -> Self {
        Self(1)
    }
}

/// The reserves for contexts on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextReserve {
    /// For the first context of a process.
    pub first: u64,
    /// For each further context.
    pub further: u64,
}

/// A context that the driver is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndingContext {
    handle: u64,
    pub(crate) id: ContextId,
    card: Card,
}

impl EndingContext {
    /// The card that the context is on.
    #[must_use]
    pub const fn card(&self) -> Card {
        self.card
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ContextEntry {
    card: Card,
    reserve: u64,
    device: i32,
    is_primary: bool,
    /// How many threads are asking the driver to end it.
    ending: u32,
}

#[derive(Debug)]
pub(crate) struct ContextTable {
    by_handle: FallibleMap<u64, (ContextId, ContextEntry)>,
    /// Ending contexts whose handle another context has.
    aside: FallibleMap<ContextId, ContextEntry>,
    /// The thread that has the turn to retain a device's primary context.
    retains: FallibleMap<i32, i32>,
    next: u64,
}

impl Default for ContextTable {
    fn default() -> Self {
        Self {
            by_handle: FallibleMap::default(),
            aside: FallibleMap::default(),
            retains: FallibleMap::default(),
            next: ContextId::first().0,
        }
    }
}

impl ContextTable {
    /// Records a context. False if it is already recorded (or cannot be). A context that is ending counts as recorded
    /// only for a caller that charged nothing, because a caller that charged a reserve has a new context.
    pub(crate) fn open(
        &mut self,
        handle: u64,
        card: Card,
        device: i32,
        reserve: u64,
        is_primary: bool,
    ) -> bool {
        if let Some((id, known)) = self.by_handle.get_mut(handle) {
            if known.ending == 0 || reserve == 0 {
                known.is_primary |= is_primary;
                return false;
            }
            let (id, known) = (*id, *known);
            self.aside.enter(id, known);
        }
        let entry = ContextEntry {
            card,
            reserve,
            device,
            is_primary,
            ending: 0,
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

    /// Whether any context on a device is recorded.
    pub(crate) fn is_any_on(&self, device: i32) -> bool {
        let mut all = self.by_handle.iter();
        all.any(|(_, (_, entry))| entry.device == device)
    }

    /// See [`crate::ProcessAllocations::name_primary`].
    pub(crate) fn name_primary(&mut self, device: i32, handle: u64) -> bool {
        let entry = self.by_handle.get_mut(handle).map(|(_, entry)| entry);
        let Some(entry) = entry.filter(|entry| entry.device == device) else {
            return false;
        };
        entry.is_primary = true;
        true
    }

    /// See [`crate::ProcessAllocations::begin_retain`].
    pub(crate) fn begin_retain(&mut self, device: i32, thread: i32, has_waited_long: bool) -> bool {
        let other = self.retains.get(device).filter(|other| **other != thread);
        let is_free = other.is_none() || has_waited_long;
        if is_free {
            self.retains.enter(device, thread);
        }
        is_free
    }

    /// See [`crate::ProcessAllocations::end_retain`].
    pub(crate) fn end_retain(&mut self, device: i32, thread: i32) {
        if self.retains.get(device) == Some(&thread) {
            self.retains.remove(device);
        }
    }

    /// See [`crate::ProcessAllocations::context_after`].
    pub(crate) fn after(&self, after: Option<ContextId>) -> Option<(ContextId, Card)> {
        let all = self
            .by_handle
            .iter()
            .map(|(_, (id, entry))| (*id, entry.card));
        all.filter(|(id, _)| after.is_none_or(|after| *id > after))
            .min()
    }

    /// The device that a context is on.
    pub(crate) fn device(&self, handle: u64) -> Option<i32> {
        self.by_handle.get(handle).map(|(_, entry)| entry.device)
    }

    /// The driver is about to be asked to end a context.
    pub(crate) fn begin_end(&mut self, handle: u64) -> Option<EndingContext> {
        let (id, entry) = self.by_handle.get_mut(handle)?;
        entry.ending = entry.ending.saturating_add(1);
        let (id, card) = (*id, entry.card);
        Some(EndingContext { handle, id, card })
    }

    /// The driver did not end it.
    pub(crate) fn lives(&mut self, ended: EndingContext) {
        if let Some((id, entry)) = self.by_handle.get_mut(ended.handle)
            && *id == ended.id
        {
            entry.ending = entry.ending.saturating_sub(1);
        }
    }

    /// The context is gone. The first caller gets its reserve.
    pub(crate) fn remove(&mut self, ended: EndingContext) -> Option<u64> {
        let entry = match self
            .by_handle
            .get(ended.handle)
            .filter(|(id, _): &&(ContextId, ContextEntry)| *id == ended.id)
        {
            Some(_) => self.by_handle.remove(ended.handle).map(|(_, entry)| entry),
            None => self.aside.remove(ended.id),
        };
        entry.map(|entry| self.hand_on(entry))
    }

    /// What to uncharge for a context that is gone: its own reserve, or the smaller one of another context on the
    /// card that takes over the larger one.
    fn hand_on(&mut self, gone: ContextEntry) -> u64 {
        let current = self.by_handle.values_mut().map(|(_, entry)| entry);
        let all = current.chain(self.aside.values_mut());
        let here = all.filter(|entry| entry.card == gone.card && entry.reserve < gone.reserve);
        match here.min_by_key(|entry| entry.reserve) {
            Some(heir) => core::mem::replace(&mut heir.reserve, gone.reserve),
            None => gone.reserve,
        }
    }

    /// See [`crate::ProcessAllocations::top_up`].
    pub(crate) fn top_up(&mut self, handle: u64, reserve: ContextReserve) -> u64 {
        let Some((_, card)) = self.find(handle) else {
            return 0;
        };
        let short = reserve.first.saturating_sub(self.reserves(card));
        if let Some((_, entry)) = self.by_handle.get_mut(handle) {
            entry.reserve = entry.reserve.saturating_add(short);
        }
        short
    }

    /// The sum of the reserves on a card.
    pub(crate) fn reserves(&self, card: Card) -> u64 {
        let current = self.by_handle.iter().map(|(_, (_, entry))| entry);
        let all = current.chain(self.aside.iter().map(|(_, entry)| entry));
        let here = all.filter(|entry| entry.card == card);
        here.fold(0, |sum, entry| sum.saturating_add(entry.reserve))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIMARY: u64 = 7;

    fn primary() -> ContextTable {
        let mut contexts = ContextTable::default();
        assert!(contexts.open(PRIMARY, 0, 0, 100, true));
        contexts
    }

    #[test]
    fn a_context_that_is_not_the_last_reference_s_is_known_all_the_while() {
        let mut contexts = primary();
        let before = contexts.find(PRIMARY);
        let ended = contexts.begin_end(PRIMARY).unwrap();
        assert_eq!(contexts.find(PRIMARY), before);
        assert_eq!(contexts.primary(0), Some(PRIMARY));
        contexts.lives(ended);
        assert_eq!(
            (contexts.find(PRIMARY), contexts.reserves(0)),
            (before, 100)
        );
    }

    #[test]
    fn of_two_who_release_at_once_one_gives_back() {
        let mut contexts = primary();
        let first = contexts.begin_end(PRIMARY).unwrap();
        let second = contexts.begin_end(PRIMARY).unwrap();
        contexts.lives(first);
        assert_eq!(contexts.remove(second), Some(100));
        assert_eq!(contexts.remove(first), None);
        assert_eq!((contexts.find(PRIMARY), contexts.reserves(0)), (None, 0));
    }

    #[test]
    fn a_turn_is_one_thread_s_until_it_ends_or_another_is_tired_of_waiting() {
        const DEVICE: i32 = 3;
        let mut contexts = ContextTable::default();
        assert!(contexts.begin_retain(DEVICE, 1, false));
        assert!(
            contexts.begin_retain(DEVICE, 1, false),
            "it is its own already"
        );
        assert!(contexts.begin_retain(4, 2, false), "another device");
        assert!(!contexts.begin_retain(DEVICE, 2, false));
        contexts.end_retain(DEVICE, 2);
        assert!(!contexts.begin_retain(DEVICE, 2, false));
        assert!(contexts.begin_retain(DEVICE, 2, true));
        contexts.end_retain(DEVICE, 1);
        assert!(
            !contexts.begin_retain(DEVICE, 1, false),
            "it was taken over"
        );
        contexts.end_retain(DEVICE, 2);
        assert!(contexts.begin_retain(DEVICE, 1, false));
    }

    #[test]
    fn a_context_is_named_primary_where_it_is_entered() {
        let mut contexts = ContextTable::default();
        assert!(!contexts.is_any_on(0) && !contexts.name_primary(0, PRIMARY));
        assert!(contexts.open(PRIMARY, 0, 0, 100, false));
        assert!(contexts.is_any_on(0) && contexts.primary(0).is_none());
        assert!(
            !contexts.name_primary(1, PRIMARY),
            "it is of another device"
        );
        assert!(contexts.name_primary(0, PRIMARY));
        assert_eq!(contexts.primary(0), Some(PRIMARY));
    }

    #[test]
    fn the_first_s_reserve_stays_until_the_last_is_gone() {
        let mut contexts = primary();
        assert!(contexts.open(8, 0, 0, 30, false));
        assert!(contexts.open(9, 1, 1, 10, false));
        let first = contexts.begin_end(PRIMARY).unwrap();
        assert_eq!(contexts.remove(first), Some(30));
        assert_eq!((contexts.reserves(0), contexts.reserves(1)), (100, 10));
        let second = contexts.begin_end(8).unwrap();
        assert_eq!(contexts.remove(second), Some(100));
        assert_eq!(contexts.reserves(0), 0);
    }

    #[test]
    fn a_further_context_that_is_left_alone_before_it_is_entered_is_the_first() {
        const RESERVE: ContextReserve = ContextReserve {
            first: 100,
            further: 30,
        };
        let mut contexts = primary();
        let first = contexts.begin_end(PRIMARY).unwrap();
        assert_eq!(contexts.remove(first), Some(100));
        assert!(contexts.open(8, 0, 0, 30, false));
        assert_eq!(contexts.top_up(8, RESERVE), 70);
        assert!(contexts.open(9, 0, 0, 30, false));
        assert_eq!(contexts.top_up(9, RESERVE), 0);
        assert_eq!(contexts.reserves(0), 130);
    }

    #[test]
    fn a_handle_that_is_given_again_at_once_is_another_context() {
        let mut contexts = primary();
        let ended = contexts.begin_end(PRIMARY).unwrap();
        assert!(contexts.open(PRIMARY, 0, 0, 30, false));
        let fresh = contexts.find(PRIMARY);
        assert_eq!(contexts.reserves(0), 130);
        assert_eq!(contexts.remove(ended), Some(30));
        assert_eq!((contexts.find(PRIMARY), contexts.reserves(0)), (fresh, 100));
    }
}
