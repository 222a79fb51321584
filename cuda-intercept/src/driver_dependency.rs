//! Whether a library that is not loaded yet could reach the driver, judged by the imports in its file.
//!
//! A library reaches the driver in two ways: by functions that it imports (the driver's own, or those that look up
//! libraries and functions at run time), or through another library. So it is harmless if it imports none of these,
//! links only with harmless libraries, and is not the driver itself. The other answer only means that it could reach
//! the driver. A file that cannot be read or is not understood gets that answer.
//!
//! The file is mapped, as the loader does a moment later. Everything in it is checked against its bounds.

use core::ffi::CStr;
use core::mem::size_of;
use core::ops::{ControlFlow, Range};
use core::ptr;

use libc::{Elf64_Ehdr, Elf64_Phdr, Elf64_Rela, Elf64_Sym};

use crate::arch;
use crate::elf;
use crate::errno;
use crate::table::DriverLibrary;

/// Libraries that do not reach the driver on their own. What a C library does is up to its callers.
const PLAIN: &[&[u8]] = &[
    arch::LOADER,
    b"libc.so.6",
    b"libdl.so.2",
    b"libgcc_s.so.1",
    b"libm.so.6",
    b"libpthread.so.0",
    b"librt.so.1",
    b"libstdc++.so.6",
];

/// The C library's functions that find other functions at run time.
const LOOKUPS: &[&[u8]] = &[
    b"dlopen",
    b"dlmopen",
    b"dlsym",
    b"dlvsym",
    b"__libc_dlopen_mode",
    b"__libc_dlsym",
    b"__libc_dlvsym",
    b"_dl_sym",
    b"_dl_vsym",
];

/// Whether a library may be loaded into a namespace of its own, where all its dependencies are loaded anew.
pub(crate) fn is_harmless_in_another_namespace(file: &CStr) -> bool {
    is_plain(file.to_bytes()) || is_harmless(file, is_plain)
}

/// Whether a library may be loaded with `RTLD_DEEPBIND`. Libraries that are already loaded keep their bindings.
pub(crate) fn is_harmless_when_bound_deep(file: &CStr) -> bool {
    is_loaded(file.to_bytes()) || is_harmless(file, |needed| is_plain(needed) || is_loaded(needed))
}

fn is_plain(name: &[u8]) -> bool {
    PLAIN.contains(&name)
}

fn is_loaded(name: &[u8]) -> bool {
    let found = elf::for_each(|object| match object.soname() {
        Some(soname) if soname.to_bytes() == name => ControlFlow::Break(()),
        Some(_) | None => ControlFlow::Continue(()),
    });
    found.is_some()
}

fn is_the_driver(name: &[u8]) -> bool {
    let mut libraries = [DriverLibrary::Cuda, DriverLibrary::Nvml].into_iter();
    libraries.any(|library| library.soname().to_bytes() == name)
}

/// Whether an import of this name can lead to the driver.
fn leads_to_the_driver(import: &[u8]) -> bool {
    let is_driver_s = match import {
        [b'c', b'u', next, ..] | [b'n', b'v', b'm', b'l', next, ..] => next.is_ascii_uppercase(),
        _ => false,
    };
    is_driver_s || LOOKUPS.contains(&import)
}

fn is_harmless(path: &CStr, is_settled: impl Fn(&[u8]) -> bool) -> bool {
    // The loader searches for any other name, so its file is not known here.
    let is_a_place = path.to_bytes().contains(&b'/') && !path.to_bytes().contains(&b'$');
    if !is_a_place {
        return false;
    }
    let _errno = errno::ErrnoGuard::now();
    let file = MappedLibrary::map(path);
    file.and_then(|file| file.leads_nowhere(is_settled)) == Some(true)
}

/// A file, mapped until dropped.
struct MappedLibrary {
    start: *const u8,
    length: usize,
}

/// The tables of a dynamic section that are read here.
#[derive(Default)]
struct DynamicTables {
    strings: usize,
    symbols: usize,
    relocations: Range<usize>,
    calls: Range<usize>,
}

/// One entry of a dynamic section.
#[derive(Clone, Copy)]
#[repr(C)]
struct DynamicEntry {
    tag: i64,
    value: u64,
}

/// A structure of the ELF format for which any bytes are a valid value.
///
/// # Safety
/// It must hold numbers only.
unsafe trait Plain: Copy {}
// SAFETY: it holds numbers only.
unsafe impl Plain for Elf64_Ehdr {}
// SAFETY: it holds numbers only.
unsafe impl Plain for Elf64_Phdr {}
// SAFETY: it holds numbers only.
unsafe impl Plain for Elf64_Rela {}
// SAFETY: it holds numbers only.
unsafe impl Plain for Elf64_Sym {}
// SAFETY: it holds numbers only.
unsafe impl Plain for DynamicEntry {}

const DT_NEEDED: i64 = 1;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_SONAME: i64 = 14;
const DT_JMPREL: i64 = 23;
const DT_AUXILIARY: i64 = 0x7fff_fffd;
const DT_FILTER: i64 = 0x7fff_ffff;

impl Drop for MappedLibrary {
    fn drop(&mut self) {
        // SAFETY: the mapping is our own.
        unsafe { libc::munmap(self.start.cast_mut().cast(), self.length) };
    }
}

impl MappedLibrary {
    fn map(path: &CStr) -> Option<Self> {
        // SAFETY: the path is a string.
        let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        if file < 0 {
            return None;
        }
        let mapped = Self::map_open(file);
        // SAFETY: the descriptor is our own.
        unsafe { libc::close(file) };
        mapped
    }

    fn map_open(file: i32) -> Option<Self> {
        // SAFETY: zeroes are a valid value.
        let mut status = unsafe { core::mem::zeroed::<libc::stat>() };
        // SAFETY: the descriptor is open, and the place is ours.
        if unsafe { libc::fstat(file, &raw mut status) } != 0 {
            return None;
        }
        let length = usize::try_from(status.st_size).ok()?;
        let (how, kind) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, how, kind, file, 0) };
        (start != libc::MAP_FAILED).then_some(Self {
            start: start.cast(),
            length,
        })
    }

    /// The value at an offset of the file.
    fn read<T: Plain>(&self, at: usize) -> Option<T> {
        let end = at.checked_add(size_of::<T>())?;
        let place = self.start.wrapping_add(at).cast::<T>();
        // SAFETY: the value lies in the mapping, and any bytes are a valid one.
        (end <= self.length).then(|| unsafe { place.read_unaligned() })
    }

    /// The string at an offset of the file.
    fn string(&self, at: usize) -> Option<&[u8]> {
        let rest = self.length.checked_sub(at)?;
        let start = self.start.wrapping_add(at);
        // SAFETY: the search stays inside the mapping.
        let end = unsafe { libc::memchr(start.cast(), 0, rest) };
        let length = (end as usize).checked_sub(start as usize)?;
        // SAFETY: so many bytes lie before the zero that was found.
        Some(unsafe { core::slice::from_raw_parts(start, length) })
    }

    fn header(&self) -> Option<Elf64_Ehdr> {
        let header: Elf64_Ehdr = self.read(0)?;
        let is_ours = header.e_ident.starts_with(b"\x7fELF\x02\x01")
            && header.e_machine == arch::ELF_MACHINE
            && usize::from(header.e_phentsize) == size_of::<Elf64_Phdr>();
        is_ours.then_some(header)
    }

    fn segments(&self) -> Option<impl Iterator<Item = Elf64_Phdr>> {
        let header = self.header()?;
        let first = usize::try_from(header.e_phoff).ok()?;
        let places = 0..usize::from(header.e_phnum);
        Some(places.map_while(move |place| {
            let at = first.checked_add(size_of::<Elf64_Phdr>().checked_mul(place)?)?;
            self.read(at)
        }))
    }

    /// The offset in the file of what the loader will map at an address.
    fn offset(&self, address: u64) -> Option<usize> {
        let mut loaded = self.segments()?.filter(|it| it.p_type == libc::PT_LOAD);
        loaded.find_map(|it| {
            let inside = address.checked_sub(it.p_vaddr)?;
            let offset = it.p_offset.checked_add(inside)?;
            (inside < it.p_filesz).then(|| usize::try_from(offset).ok())?
        })
    }

    fn dynamic(&self) -> Option<impl Iterator<Item = DynamicEntry>> {
        let start = usize::try_from(
            self.segments()?
                .find(|it| it.p_type == libc::PT_DYNAMIC)?
                .p_offset,
        )
        .ok()?;
        let entries = (0..).map_while(move |place| {
            let at = start.checked_add(size_of::<DynamicEntry>().checked_mul(place)?)?;
            self.read::<DynamicEntry>(at)
        });
        Some(entries.take_while(|entry| entry.tag != 0))
    }

    fn tables(&self) -> Option<DynamicTables> {
        let mut tables = DynamicTables::default();
        let (mut relocations, mut calls) = ((None, 0), (None, 0));
        for DynamicEntry { tag, value } in self.dynamic()? {
            match tag {
                DT_STRTAB => tables.strings = self.offset(value)?,
                DT_SYMTAB => tables.symbols = self.offset(value)?,
                DT_RELA => relocations.0 = Some(self.offset(value)?),
                DT_RELASZ => relocations.1 = usize::try_from(value).ok()?,
                DT_JMPREL => calls.0 = Some(self.offset(value)?),
                DT_PLTRELSZ => calls.1 = usize::try_from(value).ok()?,
                _ => {}
            }
        }
        let range = |(start, length): (Option<usize>, usize)| match start {
            Some(start) => Some(start..start.checked_add(length)?),
            None => Some(0..0),
        };
        tables.relocations = range(relocations)?;
        tables.calls = range(calls)?;
        (tables.strings != 0 && tables.symbols != 0).then_some(tables)
    }

    /// Whether nothing in the file leads to the driver; `None` if the file is not understood.
    fn leads_nowhere(&self, is_settled: impl Fn(&[u8]) -> bool) -> Option<bool> {
        let tables = self.tables()?;
        for DynamicEntry { tag, value } in self.dynamic()? {
            let leads = match tag {
                DT_NEEDED | DT_AUXILIARY | DT_FILTER => !is_settled(self.name(&tables, value)?),
                DT_SONAME => is_the_driver(self.name(&tables, value)?),
                _ => false,
            };
            if leads {
                return Some(false);
            }
        }
        for table in [&tables.relocations, &tables.calls] {
            for at in table.clone().step_by(size_of::<Elf64_Rela>()) {
                let relocation: Elf64_Rela = self.read(at)?;
                if leads_to_the_driver(self.import(&tables, relocation)?) {
                    return Some(false);
                }
            }
        }
        Some(true)
    }

    fn name(&self, tables: &DynamicTables, offset: u64) -> Option<&[u8]> {
        self.string(tables.strings.checked_add(usize::try_from(offset).ok()?)?)
    }

    /// The name that a relocation imports; empty if it imports none.
    fn import(&self, tables: &DynamicTables, relocation: Elf64_Rela) -> Option<&[u8]> {
        let place = usize::try_from(relocation.r_info >> 32).ok()?;
        if place == 0 {
            return Some(&[]);
        }
        let at = place.checked_mul(size_of::<Elf64_Sym>())?;
        let symbol: Elf64_Sym = self.read(tables.symbols.checked_add(at)?)?;
        match symbol.st_shndx {
            0 => self.name(tables, symbol.st_name.into()),
            _ => Some(&[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// A library in the C library's folder.
    fn system(name: &str) -> PathBuf {
        let libc = elf::for_each(|object| {
            if object.is_named(c"libc.so.6") {
                // SAFETY: the path of a library is the linker's own string.
                ControlFlow::Break(unsafe { CStr::from_ptr(object.path()) }.to_owned())
            } else {
                ControlFlow::Continue(())
            }
        });
        let libc = libc.expect("tests run on glibc");
        let libc = Path::new(libc.to_str().expect("plain path"));
        libc.parent().expect("it is in a folder").join(name)
    }

    fn in_another_namespace(file: &Path) -> bool {
        let file = CString::new(file.as_os_str().as_encoded_bytes()).expect("a path");
        is_harmless_in_another_namespace(&file)
    }

    #[test]
    fn mathematics_is_harmless_and_the_loader_s_caller_is_not() {
        assert!(in_another_namespace(&system("libm.so.6")));
        let test = std::env::current_exe().expect("a running program has a path");
        assert!(!in_another_namespace(&test), "it looks for libraries");
    }

    #[test]
    fn what_is_not_there_or_no_library_could_be_anything() {
        let folder = tempfile::tempdir().expect("room");
        let file = folder.path().join("file");
        assert!(!in_another_namespace(&file));
        for content in ["", "text", "\x7fELF\x02\x01"] {
            fs::write(&file, content).expect("it is writable");
            assert!(!in_another_namespace(&file), "{content:?}");
        }
        assert!(!is_harmless_in_another_namespace(c"libsomething.so"));
        assert!(!is_harmless_when_bound_deep(c"$ORIGIN/libm.so.6"));
    }

    #[test]
    fn what_is_loaded_keeps_what_it_was_bound_to() {
        assert!(is_harmless_when_bound_deep(c"libc.so.6"));
    }

    /// A file that is truncated or corrupt is read within its bounds.
    #[test]
    fn a_damaged_file_does_no_harm() {
        let folder = tempfile::tempdir().expect("room");
        let file = folder.path().join("file");
        let whole = fs::read(system("libm.so.6")).expect("it is there");
        for length in (0..whole.len()).step_by(whole.len() / 97) {
            fs::write(&file, whole.get(..length).unwrap_or_default()).expect("it is writable");
            in_another_namespace(&file);
        }
        let mut seed = u64::from(std::process::id());
        for _ in 0..200 {
            let mut damaged = whole.clone();
            for _ in 0..16 {
                seed = seed
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let place = (seed >> 33) as usize % 4096;
                if let Some(byte) = damaged.get_mut(place) {
                    *byte = (seed >> 24) as u8;
                }
            }
            fs::write(&file, &damaged).expect("it is writable");
            in_another_namespace(&file);
        }
    }
}
