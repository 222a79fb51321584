//! Arrays: memory without an address, counted by the blocks that it can take.
//!
//! The driver takes blocks for arrays as for linear memory, but which arrays share a block is not visible. So a large
//! array counts as whole blocks. The small arrays of a context count together: each is rounded up to a power of two
//! (those pack without gaps), and the sum to whole blocks. Freed small arrays may leave holes, so the blocks count
//! until the context's last small array is gone.

use crate::Card;
use crate::contexts::ContextId;
use crate::fallible_map::FallibleMap;
use crate::linear::{BLOCK, SMALL, worst_case};

/// An array, or a whole mipmapped one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayAllocation {
    /// The card that it is on.
    pub card: Card,
    /// The context that it belongs to.
    pub context: ContextId,
    /// The bytes that it requires.
    pub bytes: u64,
}

/// An array that was removed from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovedArray {
    /// The array.
    pub array: ArrayAllocation,
    /// What its end uncharges.
    pub cost: u64,
}

/// Bytes of one channel of an array format (`CUarray_format`), or more: an unknown format counts as the widest.
/// Block-compressed and planar formats count as 16 bytes an element.
#[must_use]
pub const fn format_bytes(format: u32) -> u64 {
    match format {
        0x01 | 0x08 | 0xc0..=0xc5 => 1,
        0x02 | 0x09 | 0x10 | 0xc6..=0xcb => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => 16,
    }
}

/// The small arrays of one context.
#[derive(Clone, Copy, Debug, Default)]
struct SmallArrays {
    count: u64,
    bytes: u64,
    /// The largest `bytes` since the context last had no small arrays.
    most: u64,
}

impl SmallArrays {
    fn cost(self) -> u64 {
        worst_case(self.most)
    }
}

#[derive(Debug, Default)]
pub(crate) struct ArrayTable {
    entries: FallibleMap<u64, ArrayAllocation>,
    shelves: FallibleMap<ContextId, SmallArrays>,
}

impl ArrayTable {
    /// Records an array. Returns what it costs.
    pub(crate) fn enter(&mut self, handle: u64, array: ArrayAllocation) -> u64 {
        if !self.entries.enter(handle, array) || array.bytes > SMALL {
            return worst_case(array.bytes);
        }
        let before = self.shelf(array.context);
        let bytes = before.bytes.saturating_add(room(array.bytes));
        let after = SmallArrays {
            count: before.count.saturating_add(1),
            bytes,
            most: before.most.max(bytes),
        };
        if self.shelves.enter(array.context, after) {
            after.cost().saturating_sub(before.cost())
        } else {
            BLOCK
        }
    }

    pub(crate) fn take(&mut self, handle: u64) -> Option<RemovedArray> {
        let array = self.entries.remove(handle)?;
        Some(self.close(array))
    }

    /// Removes one array of a context.
    pub(crate) fn take_of(&mut self, context: ContextId) -> Option<RemovedArray> {
        let (_, array) = self
            .entries
            .remove_where(|_, array: &ArrayAllocation| array.context == context)?;
        Some(self.close(array))
    }

    fn close(&mut self, array: ArrayAllocation) -> RemovedArray {
        let cost = if array.bytes > SMALL {
            worst_case(array.bytes)
        } else {
            self.unshelve(array)
        };
        RemovedArray { array, cost }
    }

    fn unshelve(&mut self, array: ArrayAllocation) -> u64 {
        let Some(shelf) = self.shelves.get_mut(array.context) else {
            return 0;
        };
        shelf.count = shelf.count.saturating_sub(1);
        shelf.bytes = shelf.bytes.saturating_sub(room(array.bytes));
        if shelf.count > 0 {
            return 0;
        }
        let gone = self.shelves.remove(array.context);
        gone.map_or(0, SmallArrays::cost)
    }

    fn shelf(&self, context: ContextId) -> SmallArrays {
        self.shelves.get(context).copied().unwrap_or_default()
    }
}

/// The bytes that a small array counts among others.
const fn room(bytes: u64) -> u64 {
    let bytes = if bytes < 512 { 512 } else { bytes };
    bytes.next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn array(bytes: u64) -> ArrayAllocation {
        ArrayAllocation {
            card: 0,
            context: ContextId::first(),
            bytes,
        }
    }

    #[test]
    fn small_arrays_share_blocks_until_the_last_is_gone() {
        let mut arrays = ArrayTable::default();
        let costs: Vec<u64> = (0..4).map(|n| arrays.enter(n, array(700_000))).collect();
        assert_eq!(costs, [2 * MIB, 0, 2 * MIB, 0]);
        let freed: Vec<u64> = (0..4)
            .filter_map(|n| arrays.take(n))
            .map(|t| t.cost)
            .collect();
        assert_eq!(freed, [0, 0, 0, 4 * MIB]);
    }

    #[test]
    fn a_large_array_counts_as_whole_blocks() {
        let mut arrays = ArrayTable::default();
        assert_eq!(arrays.enter(1, array(3 * MIB)), 4 * MIB);
        assert_eq!(arrays.take(1).map(|taken| taken.cost), Some(4 * MIB));
        assert_eq!(arrays.take(1), None);
    }
}
