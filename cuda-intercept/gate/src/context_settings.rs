//! Limits of a context that take card memory: the heap of `malloc`, the buffer of `printf`, the stacks of all
//! threads. Also the local memory of kernels, which lies where the stacks are.
//!
//! What a context has of each at the start is part of its reserve. So the first value that is seen counts as
//! included, and what is set or needed above it is charged.
//!
//! # Decision: one thread charges for a launch, and the others wait for its result
//! Many threads may launch kernels with the same need at once. If each charged for itself, a launch could be refused
//! only because another one is about to pay for both. So a thread that is refused while others are charging tries
//! again when they are done.

use crate::contexts::ContextId;
use crate::fallible_map::FallibleMap;
use crate::linear::worst_case;

/// One limit of one context, by the driver's number.
type Key = (ContextId, u32);

#[derive(Clone, Copy, Debug)]
struct ContextSetting {
    included: u64,
    charged: u64,
    /// The most that a launched kernel needed. The driver never shrinks it.
    needed: u64,
    /// How many settings and launches have relied on that.
    launches: u64,
    /// How many launches are being charged.
    pending: u32,
}

/// Whether the local memory suffices for a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalMemoryFit {
    /// It suffices from the start.
    Included,
    /// It suffices by now.
    There,
    /// This many bytes are to be charged. Then call [`ContextSettings::grown`] or [`ContextSettings::refused`].
    Short(u64),
}

/// The growth for one launch, to be undone if the launch fails.
#[derive(Clone, Copy, Debug)]
pub struct LocalMemoryGrowth {
    key: Key,
    /// The earlier need, and the cost of the growth.
    before: u64,
    bytes: u64,
    launches: u64,
}

/// The context limits of a process.
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

    /// The cost of a value, if each unit takes `unit` bytes.
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

    /// How much more a value costs than the current one, `now`.
    #[must_use]
    pub fn more(&self, key: Key, now: u64, value: u64, unit: u64) -> u64 {
        let known = self.known(key, now);
        known.cost(value, unit).saturating_sub(known.charged)
    }

    /// Records a new value in place of `now`. Returns the old charge and the new one.
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

    /// The value that a context includes of a limit, if known.
    #[must_use]
    pub fn included(&self, key: Key) -> Option<u64> {
        self.0.get(key).map(|known| known.included)
    }

    /// A kernel with this need is about to be launched.
    pub fn launch(&mut self, key: Key, now: u64, needed_bytes: u64, unit: u64) -> LocalMemoryFit {
        let mut known = self.known(key, now);
        if needed_bytes <= known.included {
            return LocalMemoryFit::Included;
        }
        let more = known.cost(needed_bytes, unit).saturating_sub(known.charged);
        let room = if needed_bytes <= known.needed {
            LocalMemoryFit::There
        } else {
            LocalMemoryFit::Short(more)
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

    /// Records that `charged` bytes were charged for the launch. Returns how much of it was too much by now.
    pub fn grown(
        &mut self,
        key: Key,
        needed_bytes: u64,
        unit: u64,
        charged: u64,
    ) -> (LocalMemoryGrowth, u64) {
        let mut known = self.known(key, 0);
        let before = known.needed;
        known.pending = known.pending.saturating_sub(1);
        known.launches = known.launches.saturating_add(1);
        known.needed = before.max(needed_bytes);
        let bytes = known
            .cost(needed_bytes, unit)
            .saturating_sub(known.charged)
            .min(charged);
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

    /// Whether any launch is being charged.
    #[must_use]
    pub fn is_pending(&self, key: Key) -> bool {
        self.0.get(key).is_some_and(|known| known.pending > 0)
    }

    /// The launch that caused this growth failed. Returns what to uncharge: nothing if another launch relied on it.
    pub fn failed(&mut self, grown: LocalMemoryGrowth) -> u64 {
        let known = self.0.get_mut(grown.key);
        let Some(known) = known.filter(|known| known.launches == grown.launches) else {
            return 0;
        };
        known.needed = grown.before;
        known.charged = known.charged.saturating_sub(grown.bytes);
        grown.bytes
    }

    /// A context has ended. Returns what to uncharge.
    pub fn ended(&mut self, context: ContextId) -> u64 {
        let mut freed = 0_u64;
        while let Some((_, setting)) = self.0.remove_where(|key, _| key.0 == context) {
            freed = freed.saturating_add(setting.charged);
        }
        freed
    }
}

/// The card memory for each thread of a kernel that uses this many bytes of local memory.
///
/// System calls need 512 bytes besides, and the driver rounds (NVIDIA's forum, "Memory required for kernel launch":
/// to a multiple of 128 or 256 bytes; this uses the larger).
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
        let launch = |settings: &mut ContextSettings, needed_bytes: u64| {
            settings.launch(STACK, 1024, 1024 + needed_bytes, BLOCK)
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
        // The stacks become smaller. What kernels need stays.
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
