//! Limits of a context that take memory of the card: the heap of `malloc`, the buffer of `printf`, the
//! stacks of all threads.
//!
//! What a context has of each from the start is part of its reserve. So the first value that is seen is
//! what a context includes, and what is set above it is charged.

use crate::contexts::ContextId;
use crate::linear::worst_case;
use crate::map::Map;

/// One limit of a context, by the driver's number.
type Key = (ContextId, u32);

#[derive(Clone, Copy, Debug)]
struct Setting {
    included: u64,
    charged: u64,
}

/// The limits of a process's contexts.
#[derive(Debug, Default)]
pub struct Settings(Map<Key, Setting>);

impl Settings {
    /// What a value would cost, and what is charged for the one that stands. `now` is the value that
    /// stands, and each unit of it takes `unit` bytes.
    #[must_use]
    pub fn cost(&self, key: Key, now: u64, value: u64, unit: u64) -> (u64, u64) {
        let known = self.0.get(key).copied();
        let included = known.map_or(now, |known| known.included);
        let above = value.saturating_sub(included).saturating_mul(unit);
        (worst_case(above), known.map_or(0, |known| known.charged))
    }

    /// A value was set, from `now`, and `charged` is charged for it.
    pub fn set(&mut self, key: Key, now: u64, charged: u64) {
        let included = self.0.get(key).map_or(now, |known| known.included);
        self.0.enter(key, Setting { included, charged });
    }

    /// A context has ended. Returns what that gives back.
    pub fn ended(&mut self, context: ContextId) -> u64 {
        let mut freed = 0_u64;
        while let Some((_, setting)) = self.0.remove_where(|key, _| key.0 == context) {
            freed = freed.saturating_add(setting.charged);
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK;

    const HEAP: Key = (ContextId::first(), 2);

    #[test]
    fn what_a_context_has_from_the_start_is_not_charged_again() {
        let mut settings = Settings::default();
        assert_eq!(settings.cost(HEAP, 8, 8 + BLOCK, 1), (BLOCK, 0));
        settings.set(HEAP, 8, BLOCK);
        assert_eq!(settings.cost(HEAP, 8 + BLOCK, 9, 1), (BLOCK, BLOCK));
        assert_eq!(settings.cost(HEAP, 8 + BLOCK, 8, 1), (0, BLOCK));
        assert_eq!(settings.ended(HEAP.0), BLOCK);
        assert_eq!(settings.ended(HEAP.0), 0);
    }

    #[test]
    fn each_unit_of_a_stack_is_there_for_every_thread() {
        let settings = Settings::default();
        let (cost, _) = settings.cost((ContextId::first(), 0), 1024, 2048, BLOCK);
        assert_eq!(cost, 1024 * BLOCK);
    }
}
