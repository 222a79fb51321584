//! Cubins: ELF files for cards. This reads which sections a card holds and which symbols they define. It ignores the
//! instructions.

use super::{CUBIN, ImageContents};
use crate::pointer::In;

/// `e_machine` of a cubin, `EM_CUDA`.
const MACHINE: u64 = 190;
/// The lengths of the file header, of a section header, and of a symbol.
const HEAD: u64 = 64;
const SYMBOL: u64 = 24;
/// Section types: content, symbols, strings, and without content.
const CONTENT: u64 = 1;
const SYMBOLS: u64 = 2;
const STRINGS: u64 = 3;
const EMPTY: u64 = 8;
/// Section flags: written, loaded, executed.
const WRITTEN: u64 = 1;
const LOADED: u64 = 2;
const EXECUTED: u64 = 4;
/// Symbol types, and the mark of functions that can be launched.
const OBJECT: u8 = 1;
const FUNCTION: u8 = 2;
const ENTRY: u8 = 0x10;

#[derive(Clone, Copy)]
struct SectionHeader {
    at: In<u64>,
}

impl SectionHeader {
    fn word(self, at: usize) -> Option<u64> {
        self.at.at(at).ok()
    }

    fn half(self, at: usize) -> Option<u32> {
        self.at.cast::<u32>().at(at).ok()
    }

    fn is_loaded(self) -> Option<bool> {
        Some(self.word(1)? & LOADED != 0)
    }
}

/// Reads a cubin. Its code is counted as the code of a bundle.
pub(super) fn read(code: In<u8>) -> Option<ImageContents> {
    let base = code.address();
    let table = base + code.cast::<u64>().at(5).ok()?;
    let (count, named) = (
        code.cast::<u16>().at(30).ok()?,
        code.cast::<u16>().at(31).ok()?,
    );
    let section = |at: u16| SectionHeader {
        at: In::from_address(table + HEAD * u64::from(at)),
    };
    let names = base + section(named).word(3)?;
    let mut image = ImageContents::default();
    // Sections that only state a kernel's on-chip memory take no device memory.
    let is_held = |at: u16| {
        let name = string(names, section(at).half(0)?)?;
        Some(section(at).is_loaded()? && !name.starts_with(b".nv.shared"))
    };
    for at in (0..count).filter(|at| is_held(*at) == Some(true)) {
        let bytes = section(at).word(4)?;
        image.bytes += bytes;
        if string(names, section(at).half(0)?)?.starts_with(b".text") {
            image.code_of_bundle += bytes;
        }
    }
    for at in 0..count {
        if u64::from(section(at).half(1)?) == SYMBOLS {
            let strings = section(u16::try_from(section(at).half(10)?).ok()?);
            let strings = base + strings.word(3)?;
            let first = base + section(at).word(3)?;
            for (name, kind, bytes, place) in (0..section(at).word(4)? / SYMBOL)
                .filter_map(|at| symbol(first + SYMBOL * at, strings))
            {
                match kind {
                    SymbolKind::Kernel => image.kernels.push(name),
                    SymbolKind::Variable if is_held(place) == Some(true) => {
                        image.variables.push((name, bytes));
                    }
                    SymbolKind::Variable => {}
                }
            }
        }
    }
    // A variable is a part of a section but is counted by itself, so subtract it here.
    let variables = image.variables.iter().map(|variable| variable.1);
    image.bytes = image.bytes.saturating_sub(variables.sum());
    Some(image)
}

enum SymbolKind {
    Kernel,
    Variable,
}

/// A symbol's name, kind, size and section.
fn symbol(at: u64, strings: u64) -> Option<(String, SymbolKind, u64, u16)> {
    let bytes = In::<u8>::from_address(at);
    let (kind, mark) = (bytes.at(4).ok()? & 0xf, bytes.at(5).ok()?);
    let defined = match kind {
        OBJECT => SymbolKind::Variable,
        FUNCTION if mark & ENTRY != 0 => SymbolKind::Kernel,
        _ => return None,
    };
    let name = string(strings, bytes.cast::<u32>().get().ok()?)?;
    let size = bytes.cast::<u64>().at(2).ok()?;
    let place = bytes.cast::<u16>().at(3).ok()?;
    let name = String::from_utf8_lossy(&name).into_owned();
    Some((name, defined, size, place))
}

fn string(strings: u64, at: u32) -> Option<Vec<u8>> {
    let text = In::<u8>::from_address(strings + u64::from(at));
    Some(text.text().ok()?.to_bytes().to_vec())
}

/// A file while it is written. The section with the section names comes last.
struct CubinWriter {
    file: Vec<u8>,
    table: Vec<u8>,
    names: Vec<u8>,
}

/// A section to be written: its content, or its length if it has none.
#[derive(Default)]
struct NewSection<'a> {
    name: &'a str,
    kind: u64,
    flags: u64,
    content: &'a [u8],
    empty: u64,
    /// The index of its string section, and the length of its entries.
    table: [u64; 2],
}

impl CubinWriter {
    fn section(&mut self, new: &NewSection<'_>) {
        let (name, offset) = (self.names.len() as u64, self.file.len() as u64);
        let bytes = new.content.len() as u64 + new.empty;
        let [link, each] = new.table;
        let kind = name | new.kind << 32;
        let words = [kind, new.flags, 0, offset, bytes, link, 8, each];
        self.table
            .extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self.names.extend(new.name.bytes().chain([0]));
        self.file.extend(new.content);
        let end = self.file.len().next_multiple_of(8);
        self.file.resize(end, 0);
    }

    fn finish(mut self) -> Vec<u8> {
        let mut names = self.names.clone();
        names.extend(b".shstrtab\0");
        self.section(&NewSection {
            name: ".shstrtab",
            kind: STRINGS,
            content: &names,
            ..NewSection::default()
        });
        let count = self.table.len() as u64 / HEAD;
        let sections = HEAD << 16 | count << 32 | (count - 1) << 48;
        let table = self.file.len() as u64;
        let magic = u64::from(CUBIN) | 0x0001_0102 << 32;
        let kind = 2 | MACHINE << 16 | 1 << 32;
        let head = [magic, 0, kind, 0, 0, table, HEAD << 32, sections];
        let head: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        [head, self.file.split_off(HEAD as usize), self.table].concat()
    }
}

/// The indices of the written sections for variables and code.
const GLOBAL: u16 = 0;
const TEXT: u16 = 1;
const SYMBOL_NAMES: u64 = 2;

/// Writes a cubin that defines what the image defines, with as many bytes of code.
pub(super) fn write(image: &ImageContents) -> Vec<u8> {
    let (mut strings, mut symbols) = (vec![0], vec![0; SYMBOL as usize]);
    let mut define = |name: &str, kind: u8, mark: u8, section: u16, bytes: u64| {
        symbols.extend((strings.len() as u32).to_le_bytes());
        symbols.extend([0x10 | kind, mark]);
        symbols.extend(section.to_le_bytes());
        symbols.extend(0_u64.to_le_bytes());
        symbols.extend(bytes.to_le_bytes());
        strings.extend(name.bytes().chain([0]));
    };
    for (name, bytes) in &image.variables {
        define(name, OBJECT, 0, GLOBAL, *bytes);
    }
    for name in &image.kernels {
        define(name, FUNCTION, ENTRY, TEXT, 0);
    }
    let mut writer = CubinWriter {
        file: vec![0; HEAD as usize],
        table: Vec::new(),
        names: Vec::new(),
    };
    writer.section(&NewSection {
        name: ".nv.global",
        kind: EMPTY,
        flags: WRITTEN | LOADED,
        empty: image.variables.iter().map(|variable| variable.1).sum(),
        ..NewSection::default()
    });
    writer.section(&NewSection {
        name: ".text.linked",
        kind: CONTENT,
        flags: LOADED | EXECUTED,
        content: &vec![0; image.bytes as usize],
        ..NewSection::default()
    });
    writer.section(&NewSection {
        name: ".strtab",
        kind: STRINGS,
        content: &strings,
        ..NewSection::default()
    });
    writer.section(&NewSection {
        name: ".symtab",
        kind: SYMBOLS,
        content: &symbols,
        table: [SYMBOL_NAMES, SYMBOL],
        ..NewSection::default()
    });
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let image = ImageContents {
            bytes: 1000,
            kernels: vec!["one".to_owned(), "spin_5us".to_owned()],
            variables: vec![("table".to_owned(), 1 << 30), ("counter".to_owned(), 8)],
            ..ImageContents::default()
        };
        let file = write(&image);
        assert_eq!(file[18], 190, "for this machine");
        assert_eq!(u16::from_le_bytes([file[58], file[59]]), 64);
        let first = file.first().expect("it has a head");
        let seen = read(In::to(first)).expect("it is a cubin");
        assert_eq!(
            (&seen.kernels, &seen.variables),
            (&image.kernels, &image.variables)
        );
        assert_eq!((seen.bytes, seen.code_of_bundle), (1000, 1000));
        assert_eq!(seen.device_bytes(), image.device_bytes());
    }
}
