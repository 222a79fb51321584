//! Deferred frees: memory that a stream will have freed when it gets there.
//!
//! A destroyed pool ends with its last allocation, which may be freed in a stream that has other work first. Such a
//! pool can no longer be queried, so its charge stays until an event behind the free has completed.

use crate::Card;
use crate::fallible_map::FallibleMap;

/// A charge, and the event that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeferredFree {
    /// The event's handle.
    pub event: u64,
    /// The card.
    pub card: Card,
    /// How much to uncharge.
    pub bytes: u64,
}

/// The deferred frees of a process.
#[derive(Debug, Default)]
pub struct DeferredFrees(FallibleMap<u64, DeferredFree>);

impl DeferredFrees {
    /// Records a deferred free.
    pub fn wait(&mut self, free: DeferredFree) {
        self.0.enter(free.event, free);
    }

    /// Removes the first one after `after`. The caller then queries its event; no other thread can meanwhile.
    pub fn take_after(&mut self, after: Option<u64>) -> Option<DeferredFree> {
        let events = self.0.iter().map(|(event, _)| event);
        let later = events.filter(|event| after.is_none_or(|after| *event > after));
        self.0.remove(later.min()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_is_asked_about_by_one_at_a_time() {
        let mut frees = DeferredFrees::default();
        let free = |event| DeferredFree {
            event,
            card: 0,
            bytes: 7,
        };
        frees.wait(free(2));
        frees.wait(free(1));
        assert_eq!(frees.take_after(None), Some(free(1)));
        assert_eq!(frees.take_after(Some(1)), Some(free(2)));
        assert_eq!(frees.take_after(None), None);
        frees.wait(free(1));
        assert_eq!(frees.take_after(None), Some(free(1)));
    }
}
