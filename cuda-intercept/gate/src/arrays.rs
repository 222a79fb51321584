//! Arrays: memory without an address, counted by what the driver says each requires.

use crate::Card;
use crate::contexts::ContextId;
use crate::map::Map;

/// An array, or a whole mipmapped one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// The card that it is on.
    pub card: Card,
    /// The context that it belongs to.
    pub context: ContextId,
    /// What it was charged.
    pub cost: u64,
}

/// Bytes of one channel of an array format (`CUarray_format`), or more: an unknown format counts as
/// the widest. Block-compressed and planar formats count as 16 bytes an element.
#[must_use]
pub const fn format_bytes(format: u32) -> u64 {
    match format {
        0x01 | 0x08 | 0xc0..=0xc5 => 1,
        0x02 | 0x09 | 0x10 | 0xc6..=0xcb => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => 16,
    }
}

#[derive(Debug, Default)]
pub(crate) struct Arrays(Map<u64, Array>);

impl Arrays {
    pub(crate) fn enter(&mut self, handle: u64, array: Array) {
        self.0.enter(handle, array);
    }

    pub(crate) fn take(&mut self, handle: u64) -> Option<Array> {
        self.0.remove(handle)
    }

    pub(crate) fn take_of(&mut self, context: ContextId) -> Option<Array> {
        let (_, array) = self.0.remove_where(|_, array| array.context == context)?;
        Some(array)
    }
}
