//! Linear memory: plain, pitched and managed allocations, counted by the driver's blocks.
//!
//! The driver takes memory in blocks of 2 MiB. A large allocation has whole blocks to itself; small ones
//! share a block, which the driver gives back when the last of them is freed. Which allocations share
//! is seen from their addresses: a block is 2 MiB of address space, aligned. So an allocation costs the
//! blocks that it touches and nobody else of the process did, and freeing it gives back those that
//! nobody touches any more.
//!
//! Before the call it is not known whether a small request will open a block; it is charged as if it
//! did ([`worst_case`]) and the rest is given back right after. At the very limit this refuses a
//! request that would have found room in an open block: the promise is that the limit holds, not that
//! the last 2 MiB can be filled.

use crate::Card;
use crate::contexts::ContextId;
use crate::map::Map;

/// The unit in which the driver takes memory from a card.
pub const BLOCK: u64 = 2 << 20;

/// What an allocation costs at most: whole blocks.
#[must_use]
pub const fn worst_case(bytes: u64) -> u64 {
    match bytes.checked_next_multiple_of(BLOCK) {
        Some(whole) => whole,
        None => u64::MAX,
    }
}

/// An allocation that was taken out of the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its address.
    pub address: u64,
    /// Its size as it was asked for.
    pub bytes: u64,
    /// The card that it is on.
    pub card: Card,
    /// The context that it belongs to.
    pub context: ContextId,
    /// What its end gives back.
    pub cost: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    card: Card,
    context: ContextId,
}

#[derive(Debug, Default)]
pub(crate) struct Linear {
    entries: Map<u64, Entry>,
    /// How many allocations touch a block that they do not fill, by the block's number.
    shared: Map<u64, u32>,
}

impl Linear {
    /// Enters an allocation. Returns what it costs now that its address is known.
    pub(crate) fn enter(
        &mut self,
        address: u64,
        bytes: u64,
        card: Card,
        context: ContextId,
    ) -> u64 {
        let entry = Entry {
            bytes,
            card,
            context,
        };
        if !self.entries.enter(address, entry) {
            return worst_case(bytes);
        }
        let span = Span::of(address, bytes);
        let opened = span.edges().filter(|block| self.touch(*block)).count();
        span.whole_bytes().saturating_add(blocks(opened))
    }

    /// Takes an allocation out.
    pub(crate) fn take(&mut self, address: u64) -> Option<Taken> {
        let entry = self.entries.remove(address)?;
        Some(self.close(address, entry))
    }

    /// Takes out one allocation of a context.
    pub(crate) fn take_of(&mut self, context: ContextId) -> Option<Taken> {
        let (address, entry) = self
            .entries
            .remove_where(|_, entry| entry.context == context)?;
        Some(self.close(address, entry))
    }

    fn close(&mut self, address: u64, entry: Entry) -> Taken {
        let span = Span::of(address, entry.bytes);
        let closed = span.edges().filter(|block| self.untouch(*block)).count();
        Taken {
            address,
            bytes: entry.bytes,
            card: entry.card,
            context: entry.context,
            cost: span.whole_bytes().saturating_add(blocks(closed)),
        }
    }

    /// Counts one more allocation in a block; true if it is the first.
    fn touch(&mut self, block: u64) -> bool {
        match self.shared.get_mut(block) {
            Some(count) => {
                *count = count.saturating_add(1);
                false
            }
            None => {
                // Without memory for the count the block is charged for good, which is never too little.
                self.shared.enter(block, 1);
                true
            }
        }
    }

    /// Counts one allocation less in a block; true if it was the last.
    fn untouch(&mut self, block: u64) -> bool {
        let Some(count) = self.shared.get_mut(block) else {
            return false;
        };
        *count = count.saturating_sub(1);
        if *count > 0 {
            return false;
        }
        self.shared.remove(block);
        true
    }
}

fn blocks(count: usize) -> u64 {
    (count as u64).saturating_mul(BLOCK)
}

/// The blocks that an allocation touches: those it fills, and at most two that it does not.
struct Span {
    first: u64,
    last: u64,
    first_is_whole: bool,
    last_is_whole: bool,
}

impl Span {
    fn of(address: u64, bytes: u64) -> Self {
        let end = address.saturating_add(bytes.max(1));
        let (first, last) = (address / BLOCK, end.saturating_sub(1) / BLOCK);
        let starts = address.is_multiple_of(BLOCK);
        let ends = end.is_multiple_of(BLOCK);
        let one = first == last;
        Self {
            first,
            last,
            first_is_whole: starts && (!one || ends),
            last_is_whole: ends && (!one || starts),
        }
    }

    /// The blocks at either end that the allocation does not fill, each once.
    fn edges(&self) -> impl Iterator<Item = u64> + use<> {
        let first = (!self.first_is_whole).then_some(self.first);
        let last = (!self.last_is_whole && self.last != self.first).then_some(self.last);
        first.into_iter().chain(last)
    }

    fn whole_bytes(&self) -> u64 {
        let all = self.last.saturating_sub(self.first).saturating_add(1);
        let edges = self.edges().count() as u64;
        all.saturating_sub(edges).saturating_mul(BLOCK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ContextId = ContextId::first();
    const BASE: u64 = 64 * BLOCK;

    #[test]
    fn small_allocations_share_a_block() {
        let mut linear = Linear::default();
        assert_eq!(linear.enter(BASE, 512, 0, HERE), BLOCK);
        assert_eq!(linear.enter(BASE + 512, 1 << 20, 0, HERE), 0);
        assert_eq!(linear.take(BASE).map(|taken| taken.cost), Some(0));
        assert_eq!(linear.take(BASE + 512).map(|taken| taken.cost), Some(BLOCK));
    }

    #[test]
    fn a_large_allocation_costs_whole_blocks() {
        let mut linear = Linear::default();
        let bytes = 5 * BLOCK + 1;
        assert_eq!(linear.enter(BASE, bytes, 0, HERE), worst_case(bytes));
        assert_eq!(
            linear.take(BASE).map(|taken| taken.cost),
            Some(worst_case(bytes))
        );
    }

    #[test]
    fn an_exact_multiple_has_no_edges() {
        let mut linear = Linear::default();
        assert_eq!(linear.enter(BASE, 3 * BLOCK, 0, HERE), 3 * BLOCK);
        assert_eq!(linear.enter(BASE + 3 * BLOCK, 7, 0, HERE), BLOCK);
    }

    #[test]
    fn an_allocation_across_a_boundary_costs_both_blocks() {
        let mut linear = Linear::default();
        assert_eq!(linear.enter(BASE + BLOCK - 8, 16, 0, HERE), 2 * BLOCK);
    }

    #[test]
    fn an_address_that_was_never_entered_is_no_ones() {
        assert_eq!(Linear::default().take(BASE), None);
    }
}
