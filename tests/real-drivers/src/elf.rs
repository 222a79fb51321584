//! The functions that a library exports, read from its file, so that no loader and no hook affects the result.

use std::collections::BTreeMap;

/// The magic number and the class of a 64-bit ELF file.
const START: &[u8] = b"\x7fELF\x02";
/// `SHT_DYNSYM`.
const DYNAMIC_SYMBOLS: usize = 11;
/// `STT_FUNC`.
const FUNCTION: usize = 2;
/// The size of an `Elf64_Sym`.
const SYMBOL: usize = 24;

/// An exported symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExportedSymbol {
    /// Its offset from the start of the library.
    pub(crate) offset: usize,
    /// Whether it is a function. The others are variables.
    pub(crate) is_function: bool,
}

/// The exports of a 64-bit ELF file by name. `None` if it is not such a file.
pub(crate) fn exports(file: &[u8]) -> Option<BTreeMap<String, ExportedSymbol>> {
    file.strip_prefix(START)?;
    let sections = number(file, 0x28, 8)?;
    let (size, count) = (number(file, 0x3a, 2)?, number(file, 0x3c, 2)?);
    let mut headers = (0..count).map(|index| sections + index * size);
    let table = headers.find(|at| number(file, at + 4, 4) == Some(DYNAMIC_SYMBOLS))?;
    let strings = sections + number(file, table + 0x28, 4)? * size;
    let strings = number(file, strings + 0x18, 8)?;
    let (start, length) = (
        number(file, table + 0x18, 8)?,
        number(file, table + 0x20, 8)?,
    );
    let found = (start..start + length).step_by(SYMBOL).filter_map(|at| {
        let section = number(file, at + 6, 2)?;
        let offset = number(file, at + 8, 8)?;
        let name = file.get(strings + number(file, at, 4)?..)?;
        let name = String::from_utf8_lossy(name.split(|byte| *byte == 0).next()?).into_owned();
        let is_function = number(file, at + 4, 1)? & 0xf == FUNCTION;
        (section != 0 && offset != 0 && !name.is_empty()).then_some((
            name,
            ExportedSymbol {
                offset,
                is_function,
            },
        ))
    });
    Some(found.collect())
}

/// A little-endian number of `bytes` bytes.
fn number(file: &[u8], at: usize, bytes: usize) -> Option<usize> {
    let field = file.get(at..at.checked_add(bytes)?)?;
    let digits = field.iter().rev();
    Some(digits.fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_none_has_no_exports() {
        assert_eq!(exports(b""), None);
        assert_eq!(exports(&[0xff; 64]), None);
    }
}
