//! Linear memory: plain, pitched and managed allocations, counted by the driver's blocks.
//!
//! The driver takes memory in blocks of 2 MiB. A large allocation has whole blocks to itself. Small ones share
//! blocks, and the driver frees a block with the last of them. Addresses show which share one: a block is 2 MiB of
//! aligned address space. So a large allocation costs its size in whole blocks. A small one costs its block if the
//! process has no other in it, and to free it gives the block back if no other is left.
//!
//! Before the call it is unknown whether a small request will open a block. It is charged as if it did
//! ([`worst_case`]), and the excess is uncharged right after. Close to the limit, this refuses a request that would
//! have fitted into an open block: the limit must hold, even if the last 2 MiB cannot be filled.

use crate::Card;
use crate::contexts::ContextId;
use crate::fallible_map::FallibleMap;

/// The unit in which the driver takes memory from a card.
pub const BLOCK: u64 = 2 << 20;
/// Requests above this never share a block.
pub(crate) const SMALL: u64 = 1 << 20;

/// The most that an allocation can cost: whole blocks.
#[must_use]
pub const fn worst_case(bytes: u64) -> u64 {
    match bytes.checked_next_multiple_of(BLOCK) {
        Some(whole) => whole,
        None => u64::MAX,
    }
}

/// An allocation that was removed from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovedLinear {
    /// Its address.
    pub address: u64,
    /// Its requested size.
    pub bytes: u64,
    /// The card that it is on.
    pub card: Card,
    /// The context that it belongs to.
    pub context: ContextId,
    /// What its end uncharges.
    pub cost: u64,
}

#[derive(Clone, Copy, Debug)]
struct LinearEntry {
    bytes: u64,
    card: Card,
    context: ContextId,
}

#[derive(Debug, Default)]
pub(crate) struct LinearTable {
    entries: FallibleMap<u64, LinearEntry>,
    /// How many small allocations lie in a block, by the block's number.
    shared: FallibleMap<u64, u32>,
}

impl LinearTable {
    /// Records an allocation. Returns what it costs, now that its address is known.
    pub(crate) fn enter(
        &mut self,
        address: u64,
        bytes: u64,
        card: Card,
        context: ContextId,
    ) -> u64 {
        let entry = LinearEntry {
            bytes,
            card,
            context,
        };
        if !self.entries.enter(address, entry) || bytes > SMALL {
            return worst_case(bytes);
        }
        touched(address, bytes)
            .filter(|block| self.touch(*block))
            .fold(0_u64, |cost, _| cost.saturating_add(BLOCK))
    }

    pub(crate) fn take(&mut self, address: u64) -> Option<RemovedLinear> {
        let entry = self.entries.remove(address)?;
        Some(self.close(address, entry))
    }

    /// The allocation that contains an address: its start, its bytes, its card and its context.
    pub(crate) fn at(&self, address: u64) -> Option<(u64, u64, Card, ContextId)> {
        let exact = self.entries.get(address).map(|entry| (address, entry));
        let found = exact.or_else(|| {
            self.entries.iter().find(|(start, entry)| {
                (*start..start.saturating_add(entry.bytes)).contains(&address)
            })
        });
        found.map(|(start, entry)| (start, entry.bytes, entry.card, entry.context))
    }

    /// Removes one allocation of a context.
    pub(crate) fn take_of(&mut self, context: ContextId) -> Option<RemovedLinear> {
        let (address, entry) = self
            .entries
            .remove_where(|_, entry| entry.context == context)?;
        Some(self.close(address, entry))
    }

    fn close(&mut self, address: u64, entry: LinearEntry) -> RemovedLinear {
        let cost = if entry.bytes > SMALL {
            worst_case(entry.bytes)
        } else {
            touched(address, entry.bytes)
                .filter(|block| self.untouch(*block))
                .fold(0_u64, |cost, _| cost.saturating_add(BLOCK))
        };
        RemovedLinear {
            address,
            bytes: entry.bytes,
            card: entry.card,
            context: entry.context,
            cost,
        }
    }

    /// Counts one more allocation in a block. True if it is the first.
    fn touch(&mut self, block: u64) -> bool {
        match self.shared.get_mut(block) {
            Some(count) => {
                *count = count.saturating_add(1);
                false
            }
            None => {
                // Without memory for the counter the block stays charged for good, which is never too little.
                self.shared.enter(block, 1);
                true
            }
        }
    }

    /// Counts one allocation less in a block. True if it was the last.
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

/// The blocks that a small allocation lies in: one, or two if it crosses a boundary.
fn touched(address: u64, bytes: u64) -> impl Iterator<Item = u64> {
    let last = address.saturating_add(bytes.max(1)).saturating_sub(1);
    address / BLOCK..=last / BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ContextId = ContextId::first();
    const BASE: u64 = 64 * BLOCK;

    #[test]
    fn small_allocations_share_a_block() {
        let mut linear = LinearTable::default();
        assert_eq!(linear.enter(BASE, 512, 0, HERE), BLOCK);
        assert_eq!(linear.enter(BASE + 512, 1 << 20, 0, HERE), 0);
        assert_eq!(linear.take(BASE).map(|taken| taken.cost), Some(0));
        assert_eq!(linear.take(BASE + 512).map(|taken| taken.cost), Some(BLOCK));
    }

    #[test]
    fn a_large_allocation_costs_whole_blocks() {
        let mut linear = LinearTable::default();
        let bytes = 5 * BLOCK + 1;
        assert_eq!(linear.enter(BASE, bytes, 0, HERE), worst_case(bytes));
        assert_eq!(
            linear.take(BASE).map(|taken| taken.cost),
            Some(worst_case(bytes))
        );
    }

    #[test]
    fn a_large_allocation_does_not_open_a_block_for_small_ones() {
        let mut linear = LinearTable::default();
        assert_eq!(linear.enter(BASE, 3 * BLOCK - 512, 0, HERE), 3 * BLOCK);
        assert_eq!(linear.enter(BASE + 3 * BLOCK - 512, 7, 0, HERE), BLOCK);
    }

    #[test]
    fn an_allocation_across_a_boundary_costs_both_blocks() {
        let mut linear = LinearTable::default();
        assert_eq!(linear.enter(BASE + BLOCK - 8, 16, 0, HERE), 2 * BLOCK);
    }

    #[test]
    fn an_address_that_was_never_entered_is_no_ones() {
        assert_eq!(LinearTable::default().take(BASE), None);
    }
}
