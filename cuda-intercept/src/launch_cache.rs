//! Functions for whose threads there is room: a launch of one of them is nothing but a look here.
//!
//! A small cache without a lock: what does not fit pushes something out, which is then found out again. The
//! driver gives the handles of functions that are gone to others, so whatever may end a function empties it
//! first.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};

/// Handles share places in groups of so many.
const GROUP: usize = 4;
const GROUPS: usize = 1 << 10;

/// The handles, and 0 where there is none.
/// Written by: launches that were found to need nothing more, and whoever ends functions. Read by: every
/// launch. Relaxed: who launches a function got it after whoever ended another had emptied this.
static SEEN: [[AtomicUsize; GROUP]; GROUPS] =
    [const { [const { AtomicUsize::new(0) }; GROUP] }; GROUPS];

/// Whether anything is in it.
/// Written by: those who write there. Read by: whoever ends functions. Relaxed, as above.
static ANY: AtomicBool = AtomicBool::new(false);

/// A number that every bit of a handle has its part in; handles are addresses.
#[inline]
const fn mixed(function: usize) -> usize {
    const ODD: usize = 0x9e37_79b9_7f4a_7c15;
    function.wrapping_mul(ODD) >> 32
}

#[inline]
fn group(function: usize) -> Option<&'static [AtomicUsize; GROUP]> {
    SEEN.get(mixed(function) % GROUPS)
}

/// Whether it is known that a function needs nothing more.
#[inline]
pub(crate) fn has(function: usize) -> bool {
    group(function).is_some_and(|group| group.iter().any(|known| known.load(Relaxed) == function))
}

/// Notes that a function needs nothing more.
pub(crate) fn note(function: usize) {
    let Some(group) = group(function) else { return };
    let free = group.iter().find(|known| known.load(Relaxed) == 0);
    let pushed_out = || group.get((mixed(function) / GROUPS) % GROUP);
    if let Some(place) = free.or_else(pushed_out) {
        place.store(function, Relaxed);
        ANY.store(true, Relaxed);
    }
}

/// Forgets all, before any of them may end.
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
        all.clone().for_each(note);
        assert!(all.clone().filter(|function| has(*function)).count() > 50);
        // More than have room: the last is known.
        (1..100_000).for_each(|number| note(number * 0x10));
        assert!(has(99_999 * 0x10) && !has(0x7));
        forget();
        assert!(!(1..100_000).any(|number| has(number * 0x10)));
    }
}
