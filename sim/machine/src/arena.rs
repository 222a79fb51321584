//! Memory in blocks: how requests of any size become whole blocks of a card.
//!
//! The real driver takes memory in steps of 2 MiB and serves small requests from shared blocks. A stream-ordered pool
//! does the same in steps of 32 MiB. Both are an [`Arena`] with different numbers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The location of an allocation: a part of a block. The library maps the block; the machine counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockPlacement {
    /// The block's name, unique in the machine.
    pub block: u64,
    /// The block's size in bytes.
    pub block_bytes: u64,
    /// The offset in the block.
    pub offset: u64,
}

/// Blocks of one owner.
#[derive(Debug)]
pub(crate) struct Arena {
    granule: u64,
    shared_up_to: u64,
    blocks: BTreeMap<u64, ArenaBlock>,
}

#[derive(Debug)]
struct ArenaBlock {
    bytes: u64,
    holes: BTreeMap<u64, u64>,
}

/// The alignment of allocations.
const ALIGNMENT: u64 = 512;

impl Arena {
    /// An arena that grows by `granule` and lets requests of at most `shared_up_to` bytes share a block.
    pub(crate) fn new(granule: u64, shared_up_to: u64) -> Self {
        Self {
            granule,
            shared_up_to,
            blocks: BTreeMap::new(),
        }
    }

    /// The size of the block that a request needs if no block has room.
    pub(crate) fn block_bytes(&self, bytes: u64) -> Option<u64> {
        bytes.checked_next_multiple_of(self.granule)
    }

    /// Places a request in the first hole that is large enough.
    pub(crate) fn place(&mut self, bytes: u64) -> Option<BlockPlacement> {
        let bytes = rounded(bytes)?;
        if bytes > self.shared_up_to {
            return None;
        }
        self.blocks.iter_mut().find_map(|(&id, block)| {
            let offset = block.take(bytes)?;
            Some(BlockPlacement {
                block: id,
                block_bytes: block.bytes,
                offset,
            })
        })
    }

    /// Adds a block with a request at its start. A block for one large request has no holes.
    pub(crate) fn grow(&mut self, id: u64, block_bytes: u64, bytes: u64) -> BlockPlacement {
        let taken = match rounded(bytes) {
            Some(taken) if taken <= self.shared_up_to => taken,
            _ => block_bytes,
        };
        let holes = (taken < block_bytes).then_some((taken, block_bytes - taken));
        self.blocks.insert(
            id,
            ArenaBlock {
                bytes: block_bytes,
                holes: holes.into_iter().collect(),
            },
        );
        BlockPlacement {
            block: id,
            block_bytes,
            offset: 0,
        }
    }

    /// Removes a request from its block.
    pub(crate) fn remove(&mut self, placement: BlockPlacement, bytes: u64) {
        let shared = rounded(bytes).filter(|taken| *taken <= self.shared_up_to);
        if let Some(block) = self.blocks.get_mut(&placement.block) {
            block.give(placement.offset, shared.unwrap_or(block.bytes));
        }
    }

    /// Removes empty blocks, as few as needed to shrink the arena to `keep` bytes.
    pub(crate) fn trim(&mut self, keep: u64) -> Vec<(u64, u64)> {
        let mut reserved = self.reserved();
        let mut gone = Vec::new();
        for (&id, block) in &self.blocks {
            if reserved <= keep {
                break;
            }
            if block.is_empty() {
                reserved -= block.bytes;
                gone.push((id, block.bytes));
            }
        }
        for (id, _) in &gone {
            self.blocks.remove(id);
        }
        gone
    }

    /// Every block with its size, when the arena ends.
    pub(crate) fn into_blocks(self) -> Vec<(u64, u64)> {
        self.blocks
            .into_iter()
            .map(|(id, block)| (id, block.bytes))
            .collect()
    }

    /// The memory that the blocks take on the card.
    pub(crate) fn reserved(&self) -> u64 {
        self.blocks.values().map(|block| block.bytes).sum()
    }
}

impl ArenaBlock {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&offset, &length) = self.holes.iter().find(|(_, length)| **length >= bytes)?;
        self.holes.remove(&offset);
        if length > bytes {
            self.holes.insert(offset + bytes, length - bytes);
        }
        Some(offset)
    }

    fn give(&mut self, offset: u64, bytes: u64) {
        let (mut start, mut length) = (offset, bytes);
        if let Some((&before, &span)) = self.holes.range(..offset).next_back()
            && before + span == offset
        {
            self.holes.remove(&before);
            (start, length) = (before, length + span);
        }
        if let Some(span) = self.holes.remove(&(offset + bytes)) {
            length += span;
        }
        self.holes.insert(start, length);
    }

    fn is_empty(&self) -> bool {
        self.holes.get(&0) == Some(&self.bytes)
    }
}

fn rounded(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn small_requests_share_a_block_and_large_ones_do_not() {
        let mut arena = Arena::new(2 * MIB, MIB);
        arena.grow(1, 2 * MIB, 100);
        assert_eq!(
            arena.place(100).map(|placement| placement.offset),
            Some(512)
        );
        assert_eq!(arena.place(MIB + 1), None);
        assert_eq!(arena.reserved(), 2 * MIB);
    }

    #[test]
    fn a_block_is_trimmed_only_when_everything_in_it_is_free() {
        let mut arena = Arena::new(2 * MIB, MIB);
        let first = arena.grow(1, 2 * MIB, 100);
        let second = arena.place(600).expect("the block has room");
        arena.remove(first, 100);
        assert!(arena.trim(0).is_empty());
        arena.remove(second, 600);
        assert_eq!(arena.trim(0), [(1, 2 * MIB)]);
    }

    #[test]
    fn neighbouring_holes_become_one() {
        let mut arena = Arena::new(2 * MIB, 2 * MIB);
        let first = arena.grow(1, 2 * MIB, MIB);
        let second = arena.place(MIB).expect("half of the block is free");
        arena.remove(second, MIB);
        arena.remove(first, MIB);
        assert_eq!(
            arena.place(2 * MIB).map(|placement| placement.offset),
            Some(0)
        );
    }
}
