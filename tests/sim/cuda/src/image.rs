//! Code as programs hand it over: how long it is, what it defines, and how much memory that takes.
//! Nothing is compiled; of PTX the names of kernels and the sizes of variables are read, of binaries
//! the length.

use std::ffi::CStr;

use crate::pointer::In;

/// What an image defines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Image {
    /// Its own length.
    pub(crate) bytes: u64,
    /// The names of the kernels, as far as they can be read.
    pub(crate) kernels: Vec<String>,
    /// The names and sizes of the variables, as far as they can be read.
    pub(crate) variables: Vec<(String, u64)>,
}

/// The first words of a bundle of images and of the structure that points to one.
const BUNDLE: u32 = 0xba55_ed50;
const WRAPPER: u32 = 0x4662_43b1;
const ELF: u32 = 0x464c_457f;

impl Image {
    /// Reads what a program gives for code: a binary that says its length, else text that ends with a
    /// zero byte.
    pub(crate) fn at(code: In<u8>) -> Option<Self> {
        let word = code.cast::<u32>().get().ok()?;
        let bytes = match word {
            BUNDLE => bundle_bytes(code)?,
            WRAPPER => bundle_bytes(In::from_address(code.cast::<u64>().at(1).ok()?))?,
            ELF => elf_bytes(code)?,
            _ => return Some(Self::of_text(&code.text().ok()?.to_string_lossy())),
        };
        Some(Self {
            bytes,
            ..Self::default()
        })
    }

    /// Reads a file's content.
    pub(crate) fn of_file(content: &[u8]) -> Self {
        match CStr::from_bytes_until_nul(content) {
            Ok(text) if text.count_bytes() + 1 < content.len() => Self {
                bytes: content.len() as u64,
                ..Self::default()
            },
            _ => Self::of_text(&String::from_utf8_lossy(content)),
        }
    }

    fn of_text(text: &str) -> Self {
        let mut image = Self {
            bytes: text.len() as u64,
            ..Self::default()
        };
        for line in text.split(['\n', ';', '{']) {
            if let Some((_, rest)) = line.split_once(".entry") {
                image.kernels.extend(identifier(rest));
            } else if line.contains(".global") && !line.contains(".extern") {
                image.variables.extend(variable(line));
            }
        }
        image
    }

    /// What the image takes on a card.
    pub(crate) fn device_bytes(&self) -> u64 {
        let variables = self.variables.iter().map(|variable| variable.1);
        variables.fold(self.bytes, u64::saturating_add)
    }
}

/// A bundle has, behind magic and version, the length of its head and that of the rest.
fn bundle_bytes(code: In<u8>) -> Option<u64> {
    let head = code.cast::<u16>().at(3).ok()?;
    let rest = code.cast::<u64>().at(1).ok()?;
    rest.checked_add(u64::from(head))
}

/// An ELF file ends behind its table of sections.
fn elf_bytes(code: In<u8>) -> Option<u64> {
    let table = code.cast::<u64>().at(5).ok()?;
    let entry = code.cast::<u16>().at(29).ok()?;
    let count = code.cast::<u16>().at(30).ok()?;
    table.checked_add(u64::from(entry) * u64::from(count))
}

fn identifier(text: &str) -> Option<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "_$%".contains(letter);
    let name: String = text
        .trim_start()
        .chars()
        .take_while(|letter| is_part(*letter))
        .collect();
    (!name.is_empty()).then_some(name)
}

/// Reads `.visible .global .align 4 .b8 name[1024] = …`.
fn variable(line: &str) -> Option<(String, u64)> {
    let declaration = line.split('=').next()?;
    let kind = declaration
        .split_whitespace()
        .rfind(|word| element_bytes(word).is_some())?;
    let (_, rest) = declaration.rsplit_once(kind)?;
    let name = identifier(rest)?;
    let count = match rest.split_once('[') {
        Some((_, rest)) => rest.split(']').next()?.trim().parse().ok()?,
        None => 1_u64,
    };
    Some((name, count.checked_mul(element_bytes(kind)?)?))
}

/// `.b8`, `.u32`, `.f64` and their like.
fn element_bytes(word: &str) -> Option<u64> {
    let bits = word
        .strip_prefix(['.'])?
        .strip_prefix(['b', 'u', 's', 'f'])?;
    match bits {
        "8" => Some(1),
        "16" => Some(2),
        "32" => Some(4),
        "64" => Some(8),
        "128" => Some(16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "
        .version 8.0
        .visible .global .align 4 .b8 table[4096];
        .global .align 8 .u64 counter = 7;
        .extern .global .b8 elsewhere[64];
        .visible .entry spin_50us(.param .u64 spin_50us_param_0)
        { ret; }";

    #[test]
    fn text_names_its_kernels_and_the_sizes_of_its_variables() {
        let image = Image::of_file(PTX.as_bytes());
        assert_eq!(image.kernels, ["spin_50us"]);
        assert_eq!(
            image.variables,
            [("table".to_owned(), 4096), ("counter".to_owned(), 8)]
        );
        assert_eq!(image.device_bytes(), PTX.len() as u64 + 4096 + 8);
    }

    #[test]
    fn a_bundle_says_its_length() {
        let mut bundle = Vec::from(BUNDLE.to_le_bytes());
        bundle.extend([1, 0, 16, 0]);
        bundle.extend(100_u64.to_le_bytes());
        let image = Image::at(In::to(&bundle[0])).expect("the magic is right");
        assert_eq!(image.bytes, 116);
    }
}
