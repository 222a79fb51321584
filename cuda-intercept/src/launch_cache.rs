//! A cache of functions that need no further charge. A launch of one of them costs only a lookup here.
//!
//! The cache is small and has no lock. A full group evicts an entry, which is then found out again. The driver reuses
//! the handles of functions that are gone, so every call that may unload functions empties the cache first.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};

/// The number of handles in a group.
const GROUP: usize = 4;
const GROUPS: usize = 1 << 10;

/// The handles; 0 in a free place.
/// Written by: launches that need no further charge, and hooks that unload functions. Read by: every launch. Relaxed:
/// a thread can only get a reused handle after the hook that unloaded the old function has emptied the cache.
static SEEN: [[AtomicUsize; GROUP]; GROUPS] =
    [const { [const { AtomicUsize::new(0) }; GROUP] }; GROUPS];

/// Whether the cache holds anything.
/// Written by: all that write `SEEN`. Read by: hooks that unload functions. Relaxed, as above.
static ANY: AtomicBool = AtomicBool::new(false);

/// A hash to which every bit of a handle contributes. Handles are addresses.
#[inline]
const fn mixed(function: usize) -> usize {
    const ODD: usize = 0x9e37_79b9_7f4a_7c15;
    function.wrapping_mul(ODD) >> 32
}

#[inline]
fn group(function: usize) -> Option<&'static [AtomicUsize; GROUP]> {
    SEEN.get(mixed(function) % GROUPS)
}

/// Whether a function is known to need no further charge.
#[inline]
pub(crate) fn has(function: usize) -> bool {
    group(function).is_some_and(|group| group.iter().any(|known| known.load(Relaxed) == function))
}

/// Notes that a function needs no further charge.
pub(crate) fn remember(function: usize) {
    let Some(group) = group(function) else { return };
    let free = group.iter().find(|known| known.load(Relaxed) == 0);
    if let Some(place) = free.or_else(|| group.get((mixed(function) / GROUPS) % GROUP)) {
        place.store(function, Relaxed);
        ANY.store(true, Relaxed);
    }
}

/// Empties the cache, before any of its functions may be unloaded.
pub(crate) fn forget() {
    if ANY.swap(false, Relaxed) {
        let all = SEEN.iter().flatten();
        all.for_each(|known| known.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_known_until_all_is_forgotten() {
        let all = (1..=64).map(|number| number * 0x40);
        all.clone().for_each(remember);
        assert!(all.clone().filter(|function| has(*function)).count() > 50);
        // There are more than fit. The last one is kept.
        (1..100_000).for_each(|number| remember(number * 0x10));
        assert!(has(99_999 * 0x10) && !has(0x7));
        forget();
        assert!(!(1..100_000).any(|number| has(number * 0x10)));
    }
}
