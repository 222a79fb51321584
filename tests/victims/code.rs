//! The steps that load code: an image with one variable of a given size, in each form that a driver accepts.

use crate::memory::UNTOUCHED;
use crate::objects::VictimObject;
use crate::script::{ScriptWords, StepOutcome, VictimProgram, result};

/// `CU_LIMIT_*` by the names of the steps.
const LIMITS: [(&str, u32); 3] = [("stack", 0), ("printf", 1), ("heap", 2)];

impl VictimProgram {
    /// A step that loads code or sets a limit. `None` for other verbs.
    pub(crate) fn code_step(&mut self, verb: &str, words: &mut ScriptWords) -> Option<StepOutcome> {
        let done = match verb {
            "ptx" | "cubin" | "fatbin" | "packed" | "with" | "file" | "library" | "libraryfile"
            | "code" => {
                let bytes = words.bytes() as u64;
                self.load(verb, bytes)
            }
            "linked" => self.link(words.bytes() as u64),
            "use" => self.use_code(words.number()),
            "stack" | "printf" | "heap" => self.set_limit(verb, words.bytes()),
            _ => return None,
        };
        Some(done.unwrap_or_else(StepOutcome::of))
    }

    fn load(&mut self, verb: &str, bytes: u64) -> Result<StepOutcome, i32> {
        let image = match verb {
            "cubin" | "library" => cubin(bytes),
            "fatbin" | "file" => bundle(&[cubin(bytes), cubin(16)]),
            "code" => bundle(&[section(b".text.first", 6, bytes)]),
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
            "fatbin" | "packed" | "code" => driver.cuModuleLoadFatBinary(out, image),
            "file" => driver.cuModuleLoad(out, path),
            "library" => driver.cuLibraryLoadData(out, image, 0, 0, 0, 0, 0, 0),
            _ => driver.cuLibraryLoadFromFile(out, path, 0, 0, 0, 0, 0, 0),
        };
        let object = match verb {
            "library" | "libraryfile" => VictimObject::Library(handle),
            _ => VictimObject::Module(handle),
        };
        Ok(self.kept(code, handle as u64, object))
    }

    /// Links an image with a variable and one without, and loads the result.
    fn link(&mut self, bytes: u64) -> Result<StepOutcome, i32> {
        const PTX: u32 = 1;
        let parts = [text(bytes), text(4)];
        let driver = self.driver()?;
        let (mut link, mut cubin, mut length) = (0, 0, 0);
        result(driver.cuLinkCreate_v2(0, 0, 0, Some(&mut link)))?;
        for part in &parts {
            let (at, bytes) = (part.as_ptr(), part.len());
            result(driver.cuLinkAddData_v2(link, PTX, at, bytes, 0, 0, 0, 0))?;
        }
        result(driver.cuLinkComplete(link, Some(&mut cubin), Some(&mut length)))?;
        let mut module = UNTOUCHED as usize;
        let image = std::ptr::with_exposed_provenance(cubin);
        let code = driver.cuModuleLoadData(Some(&mut module), image);
        result(driver.cuLinkDestroy(link))?;
        Ok(self.kept(code, module as u64, VictimObject::Module(module)))
    }

    /// Launches a kernel of a module. The driver may load the module's code now.
    fn use_code(&mut self, number: u64) -> Result<StepOutcome, i32> {
        let VictimObject::Module(module) = self.objects.get(number) else {
            return Err(-1);
        };
        let (driver, mut function) = (self.driver()?, 0);
        let name = c"first".to_bytes_with_nul().as_ptr();
        result(driver.cuModuleGetFunction(Some(&mut function), module, name))?;
        let code = driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
        Ok(match code {
            0 => StepOutcome::of(0),
            _ => StepOutcome::with(code, [1]),
        })
    }

    fn set_limit(&mut self, verb: &str, value: usize) -> Result<StepOutcome, i32> {
        let row = LIMITS.iter().find(|(name, _)| *name == verb);
        let limit = row.ok_or(-1)?.1;
        let code = self.driver()?.cuCtxSetLimit(limit, value);
        // There are no outputs that could have been written.
        Ok(match code {
            0 => StepOutcome::of(0),
            _ => StepOutcome::with(code, [1]),
        })
    }
}

fn folder() -> String {
    std::env::temp_dir().display().to_string()
}

/// The PTX of an image with one variable.
pub(crate) fn text(bytes: u64) -> Vec<u8> {
    let variable = format!(".visible .global .align 4 .b8 data[{bytes}];");
    let text = format!(".version 8.0\n.target sm_90\n.address_size 64\n{variable}\n\0");
    text.into_bytes()
}

/// A cubin with one section for variables without content.
fn cubin(bytes: u64) -> Vec<u8> {
    section(b".nv.global", 3, bytes)
}

/// A cubin with one section with this name and these flags, without content.
fn section(name: &[u8], flags: u8, bytes: u64) -> Vec<u8> {
    let mut text = [0; 16];
    text[1..=name.len()].copy_from_slice(name);
    let mut head = [0; 64];
    head[..4].copy_from_slice(b"\x7fELF");
    // The machine, the offset of the sections, the length of each header and their number.
    head[18] = 190;
    head[40] = 64 + 16;
    head[58] = 64;
    head[60] = 2;
    let (mut names, mut variables) = ([0; 64], [0; 64]);
    names[24] = 64;
    variables[0] = 1;
    variables[8] = flags;
    variables[32..40].copy_from_slice(&bytes.to_le_bytes());
    [&head[..], &text, &names, &variables].concat()
}

/// A bundle of one cubin, compressed by LZ4.
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

/// A bundle of cubins. The first is for the newest card.
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
