//! Code images as programs pass them: their length, what they define, and the memory that they need. Nothing is
//! compiled. From PTX this reads the names of kernels and the sizes of variables; from a cubin, the symbols and the
//! sizes of the sections that a card holds. From a bundle (fatbin) it takes the cubin for the newest card, and unpacks
//! it if it is LZ4.

use std::ffi::CStr;

use crate::pointer::In;

mod cubin;

/// What an image defines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ImageContents {
    /// The length of the code and of data without a name.
    pub(crate) bytes: u64,
    /// The part of it that is code of a bundle. Drivers with lazy loading load it on first use.
    pub(crate) code_of_bundle: u64,
    /// The names of the kernels, as far as they can be read.
    pub(crate) kernels: Vec<String>,
    /// The names and sizes of the variables, as far as they can be read.
    pub(crate) variables: Vec<(String, u64)>,
    /// The names of texture and surface references. Only PTX declares them.
    pub(crate) references: Vec<String>,
}

/// The magic numbers of a bundle of images and of the structure that points to one.
const BUNDLE: u32 = 0xba55_ed50;
const WRAPPER: u32 = 0x4662_43b1;
const CUBIN: u32 = 0x464c_457f;
/// The flags of a bundle's entry: compressed, LZ4, and text.
const LZ4: u64 = 0x2000;
const COMPRESSED: u64 = 0xa000;
const TEXT: u16 = 1;

impl ImageContents {
    /// Reads an image that a program passes: a binary with its length in the header, else text that ends with a zero
    /// byte.
    pub(crate) fn at(code: In<u8>) -> Option<Self> {
        let word = code.cast::<u32>().get().ok()?;
        match word {
            BUNDLE => bundle(code),
            WRAPPER => bundle(In::from_address(code.cast::<u64>().at(1).ok()?)),
            CUBIN => Some(Self {
                code_of_bundle: 0,
                ..cubin::read(code)?
            }),
            _ => Some(Self::of_text(&code.text().ok()?.to_string_lossy())),
        }
    }

    /// An image whose content is not read.
    pub(crate) fn of_bytes(bytes: u64) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }

    /// Joins two images, as a linker does.
    pub(crate) fn joined(mut self, other: Self) -> Self {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.kernels.extend(other.kernels);
        self.variables.extend(other.variables);
        self
    }

    /// The image as a cubin.
    pub(crate) fn to_cubin(&self) -> Vec<u8> {
        cubin::write(self)
    }

    /// Reads a file's content.
    pub(crate) fn of_file(content: &[u8]) -> Self {
        let magic = content.first_chunk().map(|word| u32::from_le_bytes(*word));
        if let (Some(BUNDLE | CUBIN), Some(first)) = (magic, content.first())
            && let Some(image) = Self::at(In::to(first))
        {
            return image;
        }
        match CStr::from_bytes_until_nul(content) {
            Ok(text) if text.count_bytes() + 1 < content.len() => {
                Self::of_bytes(content.len() as u64)
            }
            _ => Self::of_text(&String::from_utf8_lossy(content)),
        }
    }

    pub(crate) fn of_text(text: &str) -> Self {
        let mut image = Self {
            bytes: text.len() as u64,
            ..Self::default()
        };
        for line in text.split(['\n', ';', '{']) {
            if let Some((_, rest)) = line.split_once(".entry") {
                image.kernels.extend(identifier(rest));
            } else if (line.contains(".global") || line.contains(".const"))
                && ![".extern", ".param"].iter().any(|word| line.contains(word))
            {
                image.references.extend(reference(line));
                image.variables.extend(variable(line));
            }
        }
        image
    }

    /// The device memory that the image needs.
    pub(crate) fn device_bytes(&self) -> u64 {
        let variables = self.variables.iter().map(|variable| variable.1);
        variables.fold(self.bytes, u64::saturating_add)
    }
}

/// A bundle has a header with magic number, version, its own length and the length of the rest. The rest is a sequence
/// of entries, each with a header and content.
fn bundle(code: In<u8>) -> Option<ImageContents> {
    let base = code.address();
    let mut at = base + u64::from(code.cast::<u16>().at(3).ok()?);
    let end = at + code.cast::<u64>().at(1).ok()?;
    let mut best: Option<((bool, u32), ImageContents)> = None;
    while at + 64 <= end {
        let head = In::<u8>::from_address(at);
        let kind = head.cast::<u16>().get().ok()?;
        let content = at + u64::from(head.cast::<u32>().at(1).ok()?);
        let bytes = head.cast::<u64>().at(1).ok()?;
        let flags = head.cast::<u64>().at(5).ok()?;
        let image = if flags & LZ4 != 0 && kind != TEXT {
            let packed: Option<Vec<u8>> = (0..head.cast::<u32>().at(4).ok()? as usize)
                .map(|byte| In::<u8>::from_address(content).at(byte).ok())
                .collect();
            let mut whole = vec![0; usize::try_from(head.cast::<u64>().at(7).ok()?).ok()?];
            lz4_flex::block::decompress_into(&packed?, &mut whole).ok()?;
            cubin::read(In::to(whole.first()?))?
        } else if flags & COMPRESSED != 0 {
            let bytes = head.cast::<u64>().at(7).ok()?;
            ImageContents {
                code_of_bundle: bytes,
                ..ImageContents::of_bytes(bytes)
            }
        } else if kind == TEXT {
            ImageContents::of_text(
                &In::<u8>::from_address(content)
                    .text()
                    .ok()?
                    .to_string_lossy(),
            )
        } else {
            cubin::read(In::from_address(content))?
        };
        let rank = (kind != TEXT, head.cast::<u32>().at(7).ok()?);
        if best.as_ref().is_none_or(|(known, _)| *known < rank) {
            best = Some((rank, image));
        }
        at = content + bytes;
    }
    Some(best.unwrap_or_default().1)
}

fn identifier(text: &str) -> Option<String> {
    let name: String = text
        .trim_start()
        .chars()
        .take_while(|letter| letter.is_ascii_alphanumeric() || "_$%".contains(*letter))
        .collect();
    (!name.is_empty()).then_some(name)
}

/// Reads `.global .texref name`.
fn reference(line: &str) -> Option<String> {
    let kinds = [".texref", ".surfref"];
    let (_, rest) = kinds.iter().find_map(|kind| line.split_once(kind))?;
    identifier(rest)
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

/// The size of `.b8`, `.u32`, `.f64` and the like.
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
        let image = ImageContents::of_file(PTX.as_bytes());
        assert_eq!(image.kernels, ["spin_50us"]);
        assert_eq!(
            image.variables,
            [("table".to_owned(), 4096), ("counter".to_owned(), 8)]
        );
        assert_eq!(image.device_bytes(), PTX.len() as u64 + 4096 + 8);
    }

    /// A cubin with one variable, of this size.
    fn cubin(bytes: u64) -> Vec<u8> {
        let variables = vec![("data".to_owned(), bytes)];
        let image = ImageContents {
            variables,
            ..ImageContents::default()
        };
        image.to_cubin()
    }

    #[test]
    fn text_names_its_references() {
        let image = ImageContents::of_text(".global .texref pixels;\n.global .surfref canvas;");
        assert_eq!(image.references, ["pixels", "canvas"]);
        assert_eq!(image.variables, []);
    }

    #[test]
    fn a_bundle_is_its_cubin_for_the_newest_card() {
        let mut entries = Vec::new();
        for (arch, bytes) in [(80_u32, 1_u64 << 30), (90, 1 << 20)] {
            let content = cubin(bytes);
            let mut head = [0; 64];
            head[..8].copy_from_slice(&[2, 0, 1, 1, 64, 0, 0, 0]);
            head[8..16].copy_from_slice(&(content.len() as u64).to_le_bytes());
            head[28..32].copy_from_slice(&arch.to_le_bytes());
            entries.extend(head);
            entries.extend(content);
        }
        let mut bundle = Vec::from(BUNDLE.to_le_bytes());
        bundle.extend([1, 0, 16, 0]);
        bundle.extend((entries.len() as u64).to_le_bytes());
        bundle.extend(entries);
        let image = ImageContents::of_file(&bundle);
        assert_eq!(image.device_bytes(), 1 << 20);
    }
}
