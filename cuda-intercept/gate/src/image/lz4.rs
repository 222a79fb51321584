//! Decompresses an LZ4 block; the format is described in `lz4_Block_format.md` of the LZ4 project.
//!
//! # Decision: our own
//! The existing decoders index their input, and code that can panic must not run inside other people's programs. This
//! one checks every byte; input that makes no sense is no block.

/// The largest length that fits into the first half byte; more bytes follow.
const LONG: usize = 15;
const SHORTEST: usize = 4;

/// The most bytes that one compressed byte can become: a further byte of a length.
pub(super) const MOST: u64 = 255;

/// Decompresses a block into `into` and returns the number of bytes.
#[must_use]
pub(super) fn unpack(packed: &[u8], into: &mut [u8]) -> Option<usize> {
    let mut input = packed.iter().copied();
    let mut done = 0_usize;
    loop {
        let token = usize::from(input.next()?);
        for _ in 0..length(token >> 4, &mut input)? {
            *into.get_mut(done)? = input.next()?;
            done = done.checked_add(1)?;
        }
        // No match follows the last literals.
        let Some(low) = input.next() else {
            return Some(done);
        };
        let distance = usize::from(u16::from_le_bytes([low, input.next()?]));
        if distance == 0 {
            return None;
        }
        for _ in 0..length(token & LONG, &mut input)?.checked_add(SHORTEST)? {
            let from = done.checked_sub(distance)?;
            *into.get_mut(done)? = *into.get(from)?;
            done = done.checked_add(1)?;
        }
    }
}

/// A length that begins with `first`.
fn length(first: usize, input: &mut impl Iterator<Item = u8>) -> Option<usize> {
    let mut length = first;
    if first == LONG {
        loop {
            let more = input.next()?;
            length = length.checked_add(usize::from(more))?;
            if more != u8::MAX {
                break;
            }
        }
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_others_packed_is_unpacked_and_no_part_of_it_does_harm(
            parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..40), 1..60_usize), 0..20),
            cut in any::<prop::sample::Index>(),
        ) {
            let whole: Vec<u8> = parts.iter().flat_map(|(part, times)| part.repeat(*times)).collect();
            let packed = lz4_flex::block::compress(&whole);
            let mut found = vec![0; whole.len()];
            prop_assert_eq!(unpack(&packed, &mut found), Some(whole.len()));
            prop_assert_eq!(&found, &whole);
            let part = packed.get(..cut.index(packed.len())).unwrap_or_default();
            prop_assert!(unpack(part, &mut found).is_none_or(|length| length <= whole.len()));
            if let Some(less) = whole.len().checked_sub(1) {
                prop_assert_eq!(unpack(&packed, &mut vec![0; less]), None);
            }
        }
    }
}
