//! The steps that load code: an image with one variable of a size, in each form that a driver takes.

use crate::memory::UNTOUCHED;
use crate::objects::Object;
use crate::script::{Outcome, Victim, Words};

/// `CU_LIMIT_*` by the names of the steps.
const LIMITS: [(&str, u32); 3] = [("stack", 0), ("printf", 1), ("heap", 2)];

impl Victim {
    /// A step that loads code or sets a limit; `None` for other verbs.
    pub(crate) fn code_step(&mut self, verb: &str, words: &mut Words) -> Option<Outcome> {
        let done = match verb {
            "ptx" | "cubin" | "fatbin" | "packed" | "with" | "file" | "library" | "libraryfile" => {
                let bytes = words.bytes() as u64;
                self.load(verb, bytes)
            }
            "stack" | "printf" | "heap" => self.set_limit(verb, words.bytes()),
            _ => return None,
        };
        Some(done.unwrap_or_else(Outcome::of))
    }

    fn load(&mut self, verb: &str, bytes: u64) -> Result<Outcome, i32> {
        let image = match verb {
            "cubin" | "library" => cubin(bytes),
            "fatbin" | "file" => bundle(&[cubin(bytes), cubin(16)]),
            "packed" => packed(&cubin(bytes)),
            _ => text(bytes),
        };
        let path = format!("{}/victim-{}.image\0", folder(), std::process::id());
        if verb.ends_with("file") {
            std::fs::write(path.trim_end_matches('\0'), &image).map_err(|_| -1)?;
        }
        let (image, path) = (image.as_ptr(), path.as_ptr());
        let driver = self.driver()?;
        let mut handle = UNTOUCHED as usize;
        let out = Some(&mut handle);
        let code = match verb {
            "ptx" | "cubin" => driver.cuModuleLoadData(out, image),
            "with" => driver.cuModuleLoadDataEx(out, image, 0, 0, 0),
            "fatbin" | "packed" => driver.cuModuleLoadFatBinary(out, image),
            "file" => driver.cuModuleLoad(out, path),
            "library" => driver.cuLibraryLoadData(out, image, 0, 0, 0, 0, 0, 0),
            _ => driver.cuLibraryLoadFromFile(out, path, 0, 0, 0, 0, 0, 0),
        };
        let object = match verb {
            "library" | "libraryfile" => Object::Library(handle),
            _ => Object::Module(handle),
        };
        Ok(self.kept(code, handle as u64, object))
    }

    fn set_limit(&mut self, verb: &str, value: usize) -> Result<Outcome, i32> {
        let row = LIMITS.iter().find(|(name, _)| *name == verb);
        let limit = row.ok_or(-1)?.1;
        let code = self.driver()?.cuCtxSetLimit(limit, value);
        // There are no outputs that could have been touched.
        Ok(match code {
            0 => Outcome::of(0),
            _ => Outcome::with(code, [1]),
        })
    }
}

fn folder() -> String {
    std::env::temp_dir().display().to_string()
}

/// The text of an image with one variable.
pub(crate) fn text(bytes: u64) -> Vec<u8> {
    let variable = format!(".visible .global .align 4 .b8 data[{bytes}];");
    let text = format!(".version 8.0\n.target sm_90\n.address_size 64\n{variable}\n\0");
    text.into_bytes()
}

/// A cubin with one section of variables without content.
fn cubin(bytes: u64) -> Vec<u8> {
    const NAMES: &[u8; 16] = b"\0.nv.global\0\0\0\0\0";
    let mut head = [0; 64];
    head[..4].copy_from_slice(b"\x7fELF");
    // The machine, where the sections are, how long each head is and how many there are.
    head[18] = 190;
    head[40] = 64 + 16;
    head[58] = 64;
    head[60] = 2;
    let (mut names, mut variables) = ([0; 64], [0; 64]);
    names[24] = 64;
    variables[0] = 1;
    variables[8] = 3;
    variables[32..40].copy_from_slice(&bytes.to_le_bytes());
    [&head[..], NAMES, &names, &variables].concat()
}

/// A bundle of one cubin, packed by LZ4.
fn packed(cubin: &[u8]) -> Vec<u8> {
    let content = lz4_flex::block::compress(cubin);
    let mut bundle = bundle(std::slice::from_ref(&content));
    let head = &mut bundle[16..80];
    let length = u32::try_from(content.len()).unwrap_or(0);
    head[16..20].copy_from_slice(&length.to_le_bytes());
    head[40..48].copy_from_slice(&0x2000_u64.to_le_bytes());
    head[56..].copy_from_slice(&(cubin.len() as u64).to_le_bytes());
    bundle
}

/// A bundle of cubins, the first for the newest card.
fn bundle(cubins: &[Vec<u8>]) -> Vec<u8> {
    let mut rest = Vec::new();
    for (arch, cubin) in (80..=90_u32).rev().zip(cubins) {
        let mut head = [0; 64];
        head[..8].copy_from_slice(&[2, 0, 1, 1, 64, 0, 0, 0]);
        head[8..16].copy_from_slice(&(cubin.len() as u64).to_le_bytes());
        head[28..32].copy_from_slice(&arch.to_le_bytes());
        rest.extend(head);
        rest.extend(cubin);
    }
    let mut bundle = vec![0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
    bundle.extend((rest.len() as u64).to_le_bytes());
    bundle.extend(rest);
    bundle
}
