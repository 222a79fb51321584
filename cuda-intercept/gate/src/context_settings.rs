//! Limits of a context that take memory of the card: the heap of `malloc`, the buffer of `printf`, the
//! stacks of all threads; and what kernels need for their threads, which lies where the stacks are.
//!
//! What a context has of each from the start is part of its reserve. So the first value that is seen is
//! what a context includes, and what is set or needed above it is charged.
//!
//! # Decision: a launch is charged by one thread, and the others wait for its answer
//! Many threads may launch kernels of the same need at once. Were each charged for by itself, a launch could
//! be refused only because another is about to pay for both. So who is refused while others are being charged
//! asks again when they are done.

use crate::contexts::ContextId;
use crate::fallible_map::FallibleMap;
use crate::linear::worst_case;

/// One limit of a context, by the driver's number.
type Key = (ContextId, u32);

#[derive(Clone, Copy, Debug)]
struct ContextSetting {
    included: u64,
    charged: u64,
    /// The most that a launched kernel needed. The driver never takes it back.
    needed: u64,
    /// How many launches counted on that, and settings.
    launches: u64,
    /// How many launches are being charged for.
    pending: u32,
}

/// What there is for a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalMemoryFit {
    /// Enough from the start.
    Included,
    /// Enough by now.
    There,
    /// So many bytes are to be charged, and then [`ContextSettings::grown`] or [`ContextSettings::refused`] to be called.
    Short(u64),
}

/// What grew for one launch, should that fail.
#[derive(Clone, Copy, Debug)]
pub struct LocalMemoryGrowth {
    key: Key,
    /// What was needed before, and what this cost.
    before: u64,
    bytes: u64,
    launches: u64,
}

/// The limits of a process's contexts.
#[derive(Debug, Default)]
pub struct ContextSettings(FallibleMap<Key, ContextSetting>);

impl ContextSetting {
    const fn at_first(included: u64) -> Self {
        Self {
            included,
            charged: 0,
            needed: 0,
            launches: 0,
            pending: 0,
        }
    }

    /// What a value costs, each unit of which takes `unit` bytes.
    fn cost(&self, value: u64, unit: u64) -> u64 {
        let above = value.max(self.needed).saturating_sub(self.included);
        worst_case(above.saturating_mul(unit))
    }
}

impl ContextSettings {
    fn known(&self, key: Key, now: u64) -> ContextSetting {
        let known = self.0.get(key).copied();
        known.unwrap_or(ContextSetting::at_first(now))
    }

    /// What a value would cost more than the one that stands, which is `now`.
    #[must_use]
    pub fn more(&self, key: Key, now: u64, value: u64, unit: u64) -> u64 {
        let known = self.known(key, now);
        known.cost(value, unit).saturating_sub(known.charged)
    }

    /// A value was set, from `now`. Returns what was charged for the one before, and what is for this.
    pub fn set(&mut self, key: Key, now: u64, value: u64, unit: u64) -> (u64, u64) {
        let known = self.known(key, now);
        let charged = known.cost(value, unit);
        let launches = known.launches.saturating_add(1);
        let stands = ContextSetting {
            charged,
            launches,
            ..known
        };
        self.0.enter(key, stands);
        (known.charged, charged)
    }

    /// What a context includes of a limit, if that is known.
    #[must_use]
    pub fn included(&self, key: Key) -> Option<u64> {
        self.0.get(key).map(|known| known.included)
    }

    /// A kernel of this need is to be launched.
    pub fn launch(&mut self, key: Key, now: u64, need: u64, unit: u64) -> LocalMemoryFit {
        let mut known = self.known(key, now);
        if need <= known.included {
            return LocalMemoryFit::Included;
        }
        let more = known.cost(need, unit).saturating_sub(known.charged);
        let room = match need <= known.needed {
            true => LocalMemoryFit::There,
            false => LocalMemoryFit::Short(more),
        };
        match room {
            LocalMemoryFit::Short(_) => known.pending = known.pending.saturating_add(1),
            LocalMemoryFit::There | LocalMemoryFit::Included => {
                known.launches = known.launches.saturating_add(1)
            }
        }
        self.0.enter(key, known);
        room
    }

    /// The launch was charged with `charged`. Returns what that was too much by now.
    pub fn grown(
        &mut self,
        key: Key,
        need: u64,
        unit: u64,
        charged: u64,
    ) -> (LocalMemoryGrowth, u64) {
        let mut known = self.known(key, 0);
        let before = known.needed;
        known.pending = known.pending.saturating_sub(1);
        known.launches = known.launches.saturating_add(1);
        known.needed = before.max(need);
        let bytes = known.cost(need, unit).saturating_sub(known.charged);
        let bytes = bytes.min(charged);
        known.charged = known.charged.saturating_add(bytes);
        let grown = LocalMemoryGrowth {
            key,
            before,
            bytes,
            launches: known.launches,
        };
        self.0.enter(key, known);
        (grown, charged.saturating_sub(bytes))
    }

    /// The launch could not be charged.
    pub fn refused(&mut self, key: Key) {
        if let Some(known) = self.0.get_mut(key) {
            known.pending = known.pending.saturating_sub(1);
        }
    }

    /// Whether any launch is being charged for.
    #[must_use]
    pub fn is_pending(&self, key: Key) -> bool {
        self.0.get(key).is_some_and(|known| known.pending > 0)
    }

    /// The launch for which it grew failed. Returns what that gives back: nothing if another counted on it.
    pub fn failed(&mut self, grown: LocalMemoryGrowth) -> u64 {
        let known = self.0.get_mut(grown.key);
        let Some(known) = known.filter(|known| known.launches == grown.launches) else {
            return 0;
        };
        known.needed = grown.before;
        known.charged = known.charged.saturating_sub(grown.bytes);
        grown.bytes
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

/// What a kernel with so many local bytes needs of the card's memory for each thread.
///
/// The system's calls have 512 bytes beside them, and the driver rounds (NVIDIA's forum, "Memory required for
/// kernel launch"; by 128 or 256 bytes, of which this takes the larger).
#[must_use]
pub fn thread_bytes(local: u64) -> u64 {
    const SYSTEM: u64 = 512;
    const STEP: u64 = 256;
    match local {
        0 => 0,
        local => local
            .saturating_add(SYSTEM)
            .checked_next_multiple_of(STEP)
            .unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK;

    const HEAP: Key = (ContextId::first(), 2);
    const STACK: Key = (ContextId::first(), 0);

    #[test]
    fn what_a_context_has_from_the_start_is_not_charged_again() {
        let mut settings = ContextSettings::default();
        assert_eq!(settings.more(HEAP, 8, 8 + BLOCK, 1), BLOCK);
        assert_eq!(settings.set(HEAP, 8, 8 + BLOCK, 1), (0, BLOCK));
        assert_eq!(settings.more(HEAP, 8 + BLOCK, 9, 1), 0);
        assert_eq!(settings.set(HEAP, 8 + BLOCK, 8, 1), (BLOCK, 0));
        assert_eq!(settings.set(HEAP, 8, 9, 1), (0, BLOCK));
        assert_eq!(settings.ended(HEAP.0), BLOCK);
        assert_eq!(settings.ended(HEAP.0), 0);
    }

    #[test]
    fn each_unit_of_a_stack_is_there_for_every_thread() {
        let settings = ContextSettings::default();
        assert_eq!(settings.more(STACK, 1024, 2048, BLOCK), 1024 * BLOCK);
    }

    #[test]
    fn a_launch_is_charged_for_what_none_before_it_needed() {
        let mut settings = ContextSettings::default();
        let launch = |settings: &mut ContextSettings, need: u64| {
            settings.launch(STACK, 1024, 1024 + need, BLOCK)
        };
        assert_eq!(launch(&mut settings, 0), LocalMemoryFit::Included);
        assert_eq!(launch(&mut settings, 3), LocalMemoryFit::Short(3 * BLOCK));
        let (_, spare) = settings.grown(STACK, 1027, BLOCK, 3 * BLOCK);
        assert_eq!(spare, 0);
        assert_eq!(launch(&mut settings, 3), LocalMemoryFit::There);
        assert_eq!(launch(&mut settings, 5), LocalMemoryFit::Short(2 * BLOCK));
        settings.refused(STACK);
        assert!(!settings.is_pending(STACK));
        assert_eq!(launch(&mut settings, 3), LocalMemoryFit::There);
        assert_eq!(settings.ended(STACK.0), 3 * BLOCK);
    }

    #[test]
    fn threads_have_one_place_for_their_stacks_and_what_kernels_need() {
        let mut settings = ContextSettings::default();
        assert_eq!(settings.set(STACK, 1024, 1028, BLOCK), (0, 4 * BLOCK));
        assert_eq!(
            settings.launch(STACK, 1028, 1027, BLOCK),
            LocalMemoryFit::Short(0)
        );
        assert_eq!(settings.grown(STACK, 1027, BLOCK, 0).1, 0);
        assert_eq!(
            settings.launch(STACK, 1028, 1030, BLOCK),
            LocalMemoryFit::Short(2 * BLOCK)
        );
        settings.grown(STACK, 1030, BLOCK, 2 * BLOCK);
        // The stacks become smaller, what kernels need stays.
        assert_eq!(
            settings.set(STACK, 1028, 1024, BLOCK),
            (6 * BLOCK, 6 * BLOCK)
        );
        assert_eq!(settings.more(STACK, 1024, 1031, BLOCK), BLOCK);
        assert_eq!(settings.ended(STACK.0), 6 * BLOCK);
    }

    #[test]
    fn of_two_that_are_charged_at_once_one_gives_back() {
        let mut settings = ContextSettings::default();
        for _ in 0..2 {
            assert_eq!(
                settings.launch(STACK, 0, 2, BLOCK),
                LocalMemoryFit::Short(2 * BLOCK)
            );
        }
        let (first, spare) = settings.grown(STACK, 2, BLOCK, 2 * BLOCK);
        assert!((spare, settings.is_pending(STACK)) == (0, true));
        let (second, spare) = settings.grown(STACK, 2, BLOCK, 2 * BLOCK);
        assert_eq!((spare, settings.failed(first)), (2 * BLOCK, 0));
        assert_eq!(settings.failed(second), 0);
        assert_eq!(settings.ended(STACK.0), 2 * BLOCK);
    }

    #[test]
    fn a_launch_that_fails_alone_gives_back_what_it_grew() {
        let mut settings = ContextSettings::default();
        assert_eq!(
            settings.launch(STACK, 0, 2, BLOCK),
            LocalMemoryFit::Short(2 * BLOCK)
        );
        let (grown, _) = settings.grown(STACK, 2, BLOCK, 2 * BLOCK);
        assert_eq!(settings.failed(grown), 2 * BLOCK);
        assert_eq!(
            settings.launch(STACK, 0, 2, BLOCK),
            LocalMemoryFit::Short(2 * BLOCK)
        );
    }

    #[test]
    fn a_thread_s_bytes_lie_beside_those_of_the_system_in_whole_steps() {
        assert_eq!([0, 1, 512, 513].map(thread_bytes), [0, 768, 1024, 1280]);
        assert_eq!(thread_bytes(u64::MAX), u64::MAX);
    }
}
