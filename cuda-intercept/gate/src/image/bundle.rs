//! Bundles: one program for several cards, of which the driver takes the best fit.
//!
//! The choice depends on the card and on the driver, so the largest entry stands for all. All entries are compiled
//! from one source, so they have the same variables and similar amounts of code. If there is a cubin, the PTX beside
//! it, which is meant for later cards, is not compiled, and only its variables count.
//!
//! # Decision: compressed entries are decompressed
//! Compression hides variables without content, which can have any size. So one compressed entry, a cubin if there is
//! one, is decompressed and read, and its variables stand for those of all. That works for LZ4. For zstd, which newer
//! compilers use, no decoder avoids panics and reports failed allocations, so its variables do not count.

use alloc::vec::Vec;

use super::{BUNDLE, ImageFootprint, Reader, cubin, lz4, text, u16_at, u32_at, u64_at};

/// Kinds of an entry.
const TEXT: u16 = 1;
/// Flags of an entry whose content is compressed, by LZ4 or zstd.
const LZ4: u64 = 0x2000;
const COMPRESSED: u64 = LZ4 | 0x8000;
/// The minimum length of an entry's header.
const HEAD: u32 = 64;
/// PTX or decompressed content that is longer is not searched for variables.
const LONGEST: u64 = 64 << 20;

/// Reads the head of a fat binary and the images in it.
#[must_use]
pub fn bundle(read: &Reader<'_>) -> Option<ImageFootprint> {
    if u32_at(read, 0)? != BUNDLE {
        return None;
    }
    let mut at = u64::from(u16_at(read, 6)?);
    let end = u64_at(read, 8)?.checked_add(at)?;
    let (mut binary, mut source) = (None, ImageFootprint::default());
    let mut packed: [Option<u64>; 2] = [None; 2];
    while at.checked_add(u64::from(HEAD))? <= end {
        let head = u32_at(read, at.checked_add(4)?)?;
        let bytes = u64_at(read, at.checked_add(8)?)?;
        if head < HEAD {
            break;
        }
        let content = at.checked_add(u64::from(head))?;
        let image = entry(read, at, content)?;
        let is_text = u16_at(read, at)? == TEXT;
        if u64_at(read, at.checked_add(40)?)? & LZ4 != 0
            && let Some(first) = packed.get_mut(usize::from(is_text))
        {
            *first = first.or(Some(at));
        }
        if is_text {
            source = larger(source, image);
        } else {
            binary = Some(larger(binary.unwrap_or_default(), image));
        }
        at = content.checked_add(bytes)?;
    }
    let [cubin, text] = packed;
    let hidden = cubin.or(text).and_then(|at| unpacked(read, at));
    let most_variables = binary.unwrap_or_default().variables.max(source.variables);
    let code = binary.map_or(source.code, |binary| binary.code);
    let hidden_code = hidden.map(|(image, whole)| {
        // Assume that the other entries contain as much besides code as this one.
        let unread = whole.saturating_sub(image.code);
        code.saturating_sub(unread).max(image.code)
    });
    Some(ImageFootprint {
        variables: most_variables.max(hidden.map_or(0, |(image, _)| image.variables)),
        code: hidden_code.unwrap_or(code),
        is_bundled: true,
    })
}

/// The content behind one header.
fn entry(read: &Reader<'_>, head: u64, content: u64) -> Option<ImageFootprint> {
    let bytes = u64_at(read, head.checked_add(8)?)?;
    if u64_at(read, head.checked_add(40)?)? & COMPRESSED != 0 {
        let code = u64_at(read, head.checked_add(56)?)?.max(bytes);
        return Some(ImageFootprint {
            code,
            ..ImageFootprint::default()
        });
    }
    let from_here: &Reader<'_> =
        &|at, into| content.checked_add(at).is_some_and(|at| read(at, into));
    let found = match u16_at(read, head)? {
        TEXT => source(from_here, bytes),
        _ => cubin(from_here),
    };
    let unknown = ImageFootprint {
        code: bytes,
        ..ImageFootprint::default()
    };
    Some(found.unwrap_or(unknown))
}

fn source(read: &Reader<'_>, bytes: u64) -> Option<ImageFootprint> {
    copied(read, 0, bytes.min(LONGEST)).map(|copy| text(&copy))
}

/// Copies a part of the image. The last byte is read first, so that a false length gets no memory.
fn copied(read: &Reader<'_>, at: u64, bytes: u64) -> Option<Vec<u8>> {
    if let Some(last) = bytes.checked_sub(1) {
        read(at.checked_add(last)?, &mut [0]).then_some(())?;
    }
    let mut copy = buffer(bytes)?;
    read(at, &mut copy).then_some(copy)
}

/// A buffer of this many bytes.
fn buffer(bytes: u64) -> Option<Vec<u8>> {
    let length = usize::try_from(bytes).ok()?;
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(length).ok()?;
    buffer.resize(length, 0);
    Some(buffer)
}

/// The decompressed content behind the header of a compressed entry, and its stated length.
fn unpacked(read: &Reader<'_>, head: u64) -> Option<(ImageFootprint, u64)> {
    let content = head.checked_add(u64::from(u32_at(read, head.checked_add(4)?)?))?;
    let bytes = u64::from(u32_at(read, head.checked_add(16)?)?);
    let whole = u64_at(read, head.checked_add(56)?)?;
    if bytes > LONGEST || whole > LONGEST {
        return None;
    }
    let packed = copied(read, content, bytes)?;
    let mut found = buffer(whole.min(bytes.saturating_mul(lz4::MOST)))?;
    let length = lz4::unpack(&packed, &mut found)?;
    found.truncate(length);
    if u16_at(read, head)? == TEXT {
        return Some((text(&found), whole));
    }
    let image = cubin(&|at, into: &mut [u8]| {
        let start = usize::try_from(at).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(into.len())?));
        let part = range.and_then(|range| found.get(range));
        part.map(|part| into.copy_from_slice(part)).is_some()
    });
    image.map(|image| (image, whole))
}

fn larger(one: ImageFootprint, other: ImageFootprint) -> ImageFootprint {
    ImageFootprint {
        variables: one.variables.max(other.variables),
        code: one.code.max(other.code),
        is_bundled: true,
    }
}

#[cfg(test)]
#[expect(
    clippy::indexing_slicing,
    reason = "a test that panics has found something"
)]
mod tests {
    use super::super::tests::{made, of};
    use super::*;

    const UNPACKED: u64 = 64 << 10;

    /// A bundle of contents with their kinds and flags. Each states the same decompressed length.
    fn bundled(entries: &[(u16, u64, Vec<u8>)]) -> Vec<u8> {
        let mut unread = Vec::new();
        for (kind, flags, content) in entries {
            let mut head = [0; 64];
            head[..2].copy_from_slice(&kind.to_le_bytes());
            head[4..8].copy_from_slice(&HEAD.to_le_bytes());
            head[8..16].copy_from_slice(&(content.len() as u64).to_le_bytes());
            head[16..20].copy_from_slice(&u32::try_from(content.len()).unwrap().to_le_bytes());
            head[40..48].copy_from_slice(&flags.to_le_bytes());
            head[56..].copy_from_slice(&UNPACKED.to_le_bytes());
            unread.extend(head);
            unread.extend(content);
        }
        let mut bundle = Vec::from(BUNDLE.to_le_bytes());
        bundle.extend([1, 0, 16, 0]);
        bundle.extend((unread.len() as u64).to_le_bytes());
        bundle.extend(unread);
        bundle
    }

    #[test]
    fn a_bundle_takes_what_its_largest_cubin_takes() {
        let small = made(&[(".text.a", 6, 256), (".nv.global", 3, 512)]);
        let large = made(&[(".text.a", 6, 4096), (".nv.global", 3, 512)]);
        let text = b".global .b8 a[512];".repeat(1000);
        let all = bundled(&[(2, 0, small), (2, 0, large), (1, 0, text)]);
        let image = bundle(&of(&all)).unwrap();
        assert_eq!((image.code, image.variables), (4096, 512_000));
    }

    #[test]
    fn what_is_compressed_counts_unpacked() {
        for flag in [0x2000, 0x8000] {
            let all = bundled(&[(2, flag, vec![0; 100])]);
            let image = bundle(&of(&all)).unwrap();
            assert_eq!((image.code, image.variables), (UNPACKED, 0));
        }
    }

    #[test]
    fn variables_of_what_is_packed_count() {
        let cubin = made(&[(".text.a", 6, 256), (".nv.global", 3, 1 << 30)]);
        let text = b".global .b8 a[4096];".to_vec();
        for (kind, content, bytes) in [(2, cubin, 1 << 30), (1, text, 4096)] {
            let packed = lz4_flex::block::compress(&content);
            let all = bundled(&[(kind, 0x2000, packed.clone())]);
            let image = bundle(&of(&all)).unwrap();
            assert_eq!((image.code, image.variables), (256, bytes));
            for end in 0..packed.len() {
                let all = bundled(&[(kind, 0x2000, packed[..end].to_vec())]);
                assert!(bundle(&of(&all)).is_some(), "{end}");
            }
        }
    }

    #[test]
    fn memory_that_is_only_claimed_is_not_taken() {
        let largest = std::cell::Cell::new(0);
        for (kind, flags) in [(1, 0), (2, 0x2000), (1, 0x2000)] {
            let mut all = bundled(&[(kind, flags, b".global .b8 a[8];".to_vec())]);
            // The header claims 64 MiB, compressed and decompressed.
            for at in [24, 32, 72] {
                all[at..at + 4].copy_from_slice(&(64_u32 << 20).to_le_bytes());
            }
            let read = of(&all);
            let _ = bundle(&|at, into| {
                largest.set(largest.get().max(into.len()));
                read(at, into)
            });
        }
        assert!(largest.get() < 1024, "{largest:?}");
    }

    #[test]
    fn a_bundle_that_ends_early_is_none() {
        let all = bundled(&[(2, 0, made(&[(".nv.global", 3, 512)]))]);
        assert!(bundle(&of(&all)).is_some());
        assert_eq!(bundle(&of(&all[..60])), None);
    }
}
