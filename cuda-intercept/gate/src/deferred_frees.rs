//! Frees that are under way: what a stream will have given back when it gets there.
//!
//! A pool that was destroyed ends with its last allocation, and that may be freed in the order of a stream
//! which has other work first. Nobody can ask such a pool what it still reserves, so the charge stays until
//! an event behind the free has happened.

use crate::Card;
use crate::fallible_map::FallibleMap;

/// A charge, and the driver's event that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeferredFree {
    /// The event's handle.
    pub event: u64,
    /// The card.
    pub card: Card,
    /// How much is to be given back.
    pub bytes: u64,
}

/// The frees of a process that are under way.
#[derive(Debug, Default)]
pub struct DeferredFrees(FallibleMap<u64, DeferredFree>);

impl DeferredFrees {
    /// Enters one.
    pub fn wait(&mut self, free: DeferredFree) {
        self.0.enter(free.event, free);
    }

    /// Takes out the first one after `after`, to ask the driver about its event; while that is asked nobody
    /// else can.
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
        let mut late = DeferredFrees::default();
        let free = |event| DeferredFree {
            event,
            card: 0,
            bytes: 7,
        };
        late.wait(free(2));
        late.wait(free(1));
        assert_eq!(late.take_after(None), Some(free(1)));
        assert_eq!(late.take_after(Some(1)), Some(free(2)));
        assert_eq!(late.take_after(None), None);
        late.wait(free(1));
        assert_eq!(late.take_after(None), Some(free(1)));
    }
}
