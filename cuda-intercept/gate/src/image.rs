//! What a code image takes on a card, read before the driver is asked to load it.
//!
//! The driver never says how much a loaded image took, so the image itself is read. A cubin counts by its loaded
//! sections, a bundle by the largest of its cubins (the driver takes one), PTX by the variables that it declares.
//! Variables count with or without content: an array of a gigabyte is one line. The compiled code of PTX is assumed
//! to be no longer than the text.
//!
//! An image comes as a pointer without a length, so all sizes come from the image itself. Nothing here trusts them:
//! what cannot be read, or makes no sense, is no image (`None`), and the driver decides about it. Compressed parts
//! count as code of their full length. Their variables count if LZ4 compressed them; those under zstd are seen by the
//! agent.

mod bundle;
mod lz4;
mod ptx;

pub use bundle::bundle;
pub use ptx::text;

/// The first four bytes of a cubin.
pub const CUBIN: u32 = 0x464c_457f;
/// The first four bytes of a bundle of images.
pub const BUNDLE: u32 = 0xba55_ed50;
/// The first four bytes of the structure whose second half is the address of a bundle.
pub const WRAPPER: u32 = 0x4662_43b1;

/// What an image takes on a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageFootprint {
    /// Variables: allocated when the image is loaded.
    pub variables: u64,
    /// Code and its constants: allocated then too, or function by function if the driver is lazy.
    pub code: u64,
    /// Whether it is one of several in a bundle.
    pub is_bundled: bool,
}

/// Copies bytes of an image from an offset; false if they cannot be read.
pub type Reader<'a> = dyn Fn(u64, &mut [u8]) -> bool + 'a;

/// Each variable and each section is aligned to this.
const ALIGNMENT: u64 = 256;
/// Machines of an ELF file: `EM_CUDA`.
const MACHINE: u16 = 190;
/// Flags of a section: `SHF_ALLOC` and `SHF_EXECINSTR`.
const LOADED: u64 = 2;
const EXECUTABLE: u64 = 4;
/// The section table's entry for 64 bits.
const SECTION: u16 = 64;
/// Sections that describe a kernel's use of other kinds of memory.
const ELSEWHERE: [&[u8]; 3] = [b".nv.shared", b".nv.local", b".nv.reserve"];
/// Constants, which come with the code.
const CONSTANTS: &[u8] = b".nv.constant";

/// Reads a cubin.
#[must_use]
pub fn cubin(read: &Reader<'_>) -> Option<ImageFootprint> {
    let is_cubin = u32_at(read, 0)? == CUBIN && u16_at(read, 18)? == MACHINE;
    if !is_cubin || u16_at(read, 58)? != SECTION {
        return None;
    }
    let (table, count) = (u64_at(read, 40)?, u16_at(read, 60)?);
    let section = |at: u16| table.checked_add(u64::from(at).wrapping_mul(u64::from(SECTION)));
    let names = u64_at(read, section(u16_at(read, 62)?)?.checked_add(24)?)?;
    let mut image = ImageFootprint::default();
    for at in 0..count {
        let head = section(at)?;
        let flags = u64_at(read, head.checked_add(8)?)?;
        if flags & LOADED == 0 {
            continue;
        }
        let mut name = [0; 12];
        let place = names.checked_add(u64::from(u32_at(read, head)?))?;
        // The last name in the file may be shorter than the buffer. Such a name is none of those that matter.
        let _ = read(place, &mut name);
        let bytes = padded(u64_at(read, head.checked_add(32)?)?);
        match () {
            () if ELSEWHERE.iter().any(|start| name.starts_with(start)) => {}
            () if flags & EXECUTABLE != 0 || name.starts_with(CONSTANTS) => {
                image.code = image.code.saturating_add(bytes);
            }
            () => image.variables = image.variables.saturating_add(bytes),
        }
    }
    Some(image)
}

const fn padded(bytes: u64) -> u64 {
    match bytes.checked_next_multiple_of(ALIGNMENT) {
        Some(padded) => padded,
        None => u64::MAX,
    }
}

fn u16_at(read: &Reader<'_>, at: u64) -> Option<u16> {
    let mut bytes = [0; 2];
    read(at, &mut bytes).then(|| u16::from_le_bytes(bytes))
}

fn u32_at(read: &Reader<'_>, at: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    read(at, &mut bytes).then(|| u32::from_le_bytes(bytes))
}

fn u64_at(read: &Reader<'_>, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    read(at, &mut bytes).then(|| u64::from_le_bytes(bytes))
}

#[cfg(test)]
#[expect(
    clippy::indexing_slicing,
    reason = "a test that panics has found something"
)]
pub(crate) mod tests {
    use super::*;

    /// A reader of bytes in memory.
    pub(crate) fn of(bytes: &[u8]) -> impl Fn(u64, &mut [u8]) -> bool {
        |at, into: &mut [u8]| {
            let start = usize::try_from(at).unwrap();
            let found = start
                .checked_add(into.len())
                .and_then(|end| bytes.get(start..end));
            found.map(|found| into.copy_from_slice(found)).is_some()
        }
    }

    /// A cubin with sections of these names, flags and sizes, without content.
    pub(crate) fn made(sections: &[(&str, u64, u64)]) -> Vec<u8> {
        let mut names = vec![0];
        let mut table = Vec::new();
        let all = [&[("", 0, 0)], sections].concat();
        for (name, flags, bytes) in all {
            let mut head = [0_u8; 64];
            head[..4].copy_from_slice(&u32::try_from(names.len()).unwrap().to_le_bytes());
            head[8..16].copy_from_slice(&flags.to_le_bytes());
            head[32..40].copy_from_slice(&bytes.to_le_bytes());
            names.extend(name.bytes().chain([0]));
            table.extend(head);
        }
        // The first section holds the names.
        names.resize(names.len().next_multiple_of(8), 0);
        table[24..32].copy_from_slice(&64_u64.to_le_bytes());
        let mut file = vec![0; 64];
        file[..4].copy_from_slice(&CUBIN.to_le_bytes());
        file[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        file[40..48].copy_from_slice(&(64 + names.len() as u64).to_le_bytes());
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&u16::try_from(sections.len() + 1).unwrap().to_le_bytes());
        [file, names, table].concat()
    }

    #[test]
    fn a_cubin_takes_what_is_loaded_of_it() {
        let file = made(&[
            (".text.kernel", 6, 1024),
            (".nv.constant0.kernel", 2, 352),
            (".nv.global", 3, 1 << 30),
            (".nv.global.init", 3, 10),
            (".nv.shared.kernel", 3, 48 << 10),
            (".debug_line", 0, 1 << 20),
        ]);
        let image = cubin(&of(&file)).unwrap();
        assert_eq!((image.code, image.variables), (1024 + 512, (1 << 30) + 256));
    }

    #[test]
    fn what_ends_early_or_is_for_another_machine_is_no_cubin() {
        let file = made(&[(".nv.global", 3, 1 << 30)]);
        // Of the last section's header, nothing behind the size is read.
        for end in 0..file.len() - 24 {
            assert_eq!(cubin(&of(&file[..end])), None, "{end}");
        }
        let mut other = file;
        other[18] = 62;
        assert_eq!(cubin(&of(&other)), None);
    }
}
