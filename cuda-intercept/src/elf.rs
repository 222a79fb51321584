//! Finds symbols in loaded objects by reading their tables.
//!
//! Everything that this library needs beyond basic libc calls is found here: the real `dlsym`, the driver and its
//! functions. The dynamic linker is not asked, for three reasons. Our own `dlsym` hides the real one. A failed
//! `dlopen` or `dlsym` leaves a message in `dlerror`, which the program would take for its own. And a table walk
//! works alike on every glibc and on musl, without naming a symbol version.
//!
//! The C library protects the list of objects with a lock, and glibc does not reset that lock in a child of `fork`.
//! If the parent forked while another thread read the list, a child that reads the list hangs. So results are kept,
//! and nothing is looked up twice.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::size_of;
use core::ops::{ControlFlow, Range};
use core::ptr;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};

use libc::{Elf64_Addr, Elf64_Phdr, Elf64_Sym, dl_phdr_info};

const DT_NEEDED: i64 = 1;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;

/// One entry of an object's dynamic section.
#[repr(C)]
struct ElfDyn {
    tag: i64,
    value: u64,
}

/// The name of a function and its hash in `DT_GNU_HASH` tables. The compiler hashes constants, because a process
/// looks up about a hundred of them before its first call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashedSymbol<'a> {
    name: &'a CStr,
    hash: u32,
}

impl<'a> HashedSymbol<'a> {
    pub(crate) const fn of(name: &'a CStr) -> Self {
        let hash = gnu_hash(name.to_bytes());
        Self { name, hash }
    }
}

/// A loaded object: the program, a library or the vDSO.
///
/// It is valid only while the object stays loaded. So it is used only inside [`for_each`], or for an object that is
/// pinned.
pub(crate) struct LoadedObject {
    base: usize,
    span: Range<usize>,
    name: *const c_char,
    dynamic: *const ElfDyn,
    strings: usize,
    symbols: usize,
    soname: Option<usize>,
    gnu_hash: usize,
    hash: usize,
}

/// Calls `visit` with each loaded object, in load order, until it breaks.
pub(crate) fn for_each<B>(mut visit: impl FnMut(&LoadedObject) -> ControlFlow<B>) -> Option<B> {
    struct ObjectWalk<'a, B> {
        visit: &'a mut dyn FnMut(&LoadedObject) -> ControlFlow<B>,
        found: Option<B>,
    }
    unsafe extern "C" fn step<B>(info: *mut dl_phdr_info, _: usize, walk: *mut c_void) -> c_int {
        // SAFETY: the linker hands out a valid description for the length of this call.
        let info = unsafe { &*info };
        // SAFETY: `walk` is the pointer that `for_each` passes below, exclusive to this walk.
        let walk = unsafe { &mut *walk.cast::<ObjectWalk<'_, B>>() };
        // SAFETY: the description is that of a loaded object.
        let Some(object) = (unsafe { LoadedObject::read(info) }) else {
            return 0;
        };
        match (walk.visit)(&object) {
            ControlFlow::Continue(()) => 0,
            ControlFlow::Break(found) => {
                walk.found = Some(found);
                1
            }
        }
    }
    let mut walk = ObjectWalk {
        visit: &mut visit,
        found: None,
    };
    // SAFETY: `step` has the signature asked for, and `walk` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(step::<B>), (&raw mut walk).cast()) };
    walk.found
}

/// Hands out the tag and the value of each entry.
///
/// # Safety
/// `entry` must point to the dynamic section of a loaded object.
unsafe fn each_entry(mut entry: *const ElfDyn, mut visit: impl FnMut(i64, usize)) {
    loop {
        // SAFETY: the section goes on until the entry with tag zero.
        let ElfDyn { tag, value } = unsafe { entry.read() };
        if tag == 0 {
            return;
        }
        visit(tag, value as usize);
        // SAFETY: the entry was not the last.
        entry = unsafe { entry.add(1) };
    }
}

/// The address range of this object; zeroes until the first lookup.
/// Written by: the first lookup, always with the same values. Read by: every lookup. Release/Acquire.
static OURS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Whether an address lies in the object that contains this code.
pub(crate) fn is_ours(address: usize) -> bool {
    let [start, end] = &OURS;
    if end.load(Acquire) == 0 {
        for_each(|object| {
            if object.is_ours() {
                start.store(object.span.start, Release);
                end.store(object.span.end, Release);
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
    }
    (start.load(Acquire)..end.load(Acquire)).contains(&address)
}

impl LoadedObject {
    /// # Safety
    /// `info` must describe an object that stays loaded while the result is used.
    unsafe fn read(info: &dl_phdr_info) -> Option<Self> {
        let base = info.dlpi_addr as usize;
        let mut object = Self {
            base,
            span: Range {
                start: usize::MAX,
                end: 0,
            },
            name: info.dlpi_name,
            dynamic: ptr::null(),
            strings: 0,
            symbols: 0,
            soname: None,
            gnu_hash: 0,
            hash: 0,
        };
        for place in 0..usize::from(info.dlpi_phnum) {
            let header: *const Elf64_Phdr = info.dlpi_phdr.wrapping_add(place);
            // SAFETY: the table has `dlpi_phnum` entries.
            let header = unsafe { &*header };
            let start = base.wrapping_add(header.p_vaddr as usize);
            match header.p_type {
                libc::PT_LOAD => {
                    object.span.start = object.span.start.min(start);
                    let end = start.saturating_add(header.p_memsz as usize);
                    object.span.end = object.span.end.max(end);
                }
                libc::PT_DYNAMIC => object.dynamic = start as *const ElfDyn,
                _ => {}
            }
        }
        if object.dynamic.is_null() {
            return None;
        }
        let entries = object.dynamic;
        let read = |tag, value| match tag {
            DT_STRTAB => object.strings = object.absolute(value),
            DT_SYMTAB => object.symbols = object.absolute(value),
            DT_GNU_HASH => object.gnu_hash = object.absolute(value),
            DT_HASH => object.hash = object.absolute(value),
            DT_SONAME => object.soname = Some(value),
            _ => {}
        };
        // SAFETY: a loaded object's dynamic section is mapped and ends with a zero tag.
        unsafe { each_entry(entries, read) };
        (object.strings != 0 && object.symbols != 0).then_some(object)
    }

    /// Whether the object names this library as one that it needs.
    pub(crate) fn needs(&self, library: &CStr) -> bool {
        let mut does = false;
        let look = |tag, value| {
            if tag == DT_NEEDED {
                let name = self.strings.wrapping_add(value) as *const c_char;
                // SAFETY: the name is a string in the object's string table.
                does |= unsafe { CStr::from_ptr(name) } == library;
            }
        };
        // SAFETY: the section is that of a loaded object.
        unsafe { each_entry(self.dynamic, look) };
        does
    }

    /// glibc writes absolute addresses into the dynamic section when it loads an object. musl and the vDSO leave the
    /// file's offsets.
    fn absolute(&self, value: usize) -> usize {
        if value < self.base {
            self.base.wrapping_add(value)
        } else {
            value
        }
    }

    /// The object's address range.
    pub(crate) fn span(&self) -> &Range<usize> {
        &self.span
    }

    /// Whether the object contains this code.
    pub(crate) fn is_ours(&self) -> bool {
        self.span.contains(&(is_ours as fn(usize) -> bool as usize))
    }

    /// The path that the linker has for the object; null or empty for the program itself.
    pub(crate) fn path(&self) -> *const c_char {
        self.name
    }

    /// Whether it is a library and not the program itself.
    pub(crate) fn is_library(&self) -> bool {
        // SAFETY: the name is null or the linker's own string.
        !self.name.is_null() && unsafe { self.name.read() } != 0
    }

    pub(crate) fn soname(&self) -> Option<&CStr> {
        let soname = self.strings.wrapping_add(self.soname?) as *const c_char;
        // SAFETY: the name is a string in the object's string table.
        Some(unsafe { CStr::from_ptr(soname) })
    }

    /// Whether the object has this soname.
    pub(crate) fn is_named(&self, name: &CStr) -> bool {
        self.soname() == Some(name)
    }

    /// The address of a function that the object defines and exports.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<usize> {
        self.address_of(HashedSymbol::of(name))
    }

    /// Like `symbol`, for a symbol whose hash is known.
    pub(crate) fn address_of(&self, symbol: HashedSymbol<'_>) -> Option<usize> {
        if self.gnu_hash != 0 {
            // SAFETY: the address is that of the object's hash table.
            unsafe { self.by_gnu_hash(symbol) }
        } else if self.hash != 0 {
            // SAFETY: as above, in the older format.
            unsafe { self.by_hash(symbol.name) }
        } else {
            None
        }
    }

    /// # Safety
    /// `gnu_hash` must be the address of the object's `DT_GNU_HASH` table.
    unsafe fn by_gnu_hash(
        &self,
        HashedSymbol { name, hash: wanted }: HashedSymbol<'_>,
    ) -> Option<usize> {
        let table = self.gnu_hash as *const u32;
        // SAFETY: the table starts with four words.
        let header = unsafe { table.cast::<[u32; 4]>().read_unaligned() };
        let [buckets, first, filter_words, _] = header.map(|word| word as usize);
        if buckets == 0 {
            return None;
        }
        let filter_bytes = filter_words.wrapping_mul(size_of::<Elf64_Addr>());
        let bucket_table = self.gnu_hash.wrapping_add(16).wrapping_add(filter_bytes);
        let chain_table = bucket_table.wrapping_add(buckets.wrapping_mul(4));
        let bucket = bucket_table.wrapping_add((wanted as usize % buckets).wrapping_mul(4));
        // SAFETY: the bucket's number is below the number of buckets.
        let mut place = unsafe { (bucket as *const u32).read() } as usize;
        if place < first {
            return None;
        }
        loop {
            let link = chain_table.wrapping_add(place.wrapping_sub(first).wrapping_mul(4));
            // SAFETY: a chain goes on until the entry with the lowest bit set.
            let hash = unsafe { (link as *const u32).read() };
            if hash | 1 == wanted | 1 {
                // SAFETY: the chain holds places of the symbol table.
                if let Some(address) = unsafe { self.defined(place, name) } {
                    return Some(address);
                }
            }
            if hash & 1 != 0 {
                return None;
            }
            place = place.wrapping_add(1);
        }
    }

    /// # Safety
    /// `hash` must be the address of the object's `DT_HASH` table.
    unsafe fn by_hash(&self, name: &CStr) -> Option<usize> {
        let table = self.hash as *const u32;
        // SAFETY: the second word is the number of symbols.
        let symbols = unsafe { table.wrapping_add(1).read() } as usize;
        // SAFETY: every place is below the number of symbols.
        (1..symbols).find_map(|place| unsafe { self.defined(place, name) })
    }

    /// # Safety
    /// `place` must be inside the object's symbol table.
    unsafe fn defined(&self, place: usize, name: &CStr) -> Option<usize> {
        let table = self.symbols as *const Elf64_Sym;
        // SAFETY: the caller guarantees the place.
        let symbol = unsafe { &*table.wrapping_add(place) };
        let kind = symbol.st_info & 0xf;
        if symbol.st_shndx == 0 || !matches!(kind, STT_NOTYPE | STT_FUNC) {
            return None;
        }
        let own = self.strings.wrapping_add(symbol.st_name as usize) as *const c_char;
        // SAFETY: the name is a string in the object's string table.
        let own = unsafe { CStr::from_ptr(own) };
        (own == name).then(|| self.base.wrapping_add(symbol.st_value as usize))
    }
}

const fn gnu_hash(mut name: &[u8]) -> u32 {
    let mut hash: u32 = 5381;
    while let [first, rest @ ..] = name {
        hash = hash.wrapping_mul(33).wrapping_add(*first as u32);
        name = rest;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &CStr) -> Option<usize> {
        for_each(|object| match object.symbol(name) {
            Some(address) => ControlFlow::Break(address),
            None => ControlFlow::Continue(()),
        })
    }

    #[test]
    fn finds_what_the_linker_finds() {
        for name in [c"getpid", c"dlopen", c"mmap", c"close"] {
            // SAFETY: the name is a string, and the handle means the default search order.
            let linker = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert_eq!(find(name), Some(linker as usize), "{name:?}");
        }
    }

    #[test]
    fn finds_nothing_where_there_is_nothing() {
        assert_eq!(find(c"there_is_no_such_function"), None);
    }

    #[test]
    fn knows_an_object_by_the_name_it_gives_itself() {
        let libc_is_there = for_each(|object| {
            if object.is_named(c"libc.so.6") {
                ControlFlow::Break(object.symbol(c"dlsym").is_some())
            } else {
                ControlFlow::Continue(())
            }
        });
        assert_eq!(libc_is_there, Some(true));
    }

    #[test]
    fn tells_its_own_addresses_from_others() {
        assert!(is_ours(find as fn(&CStr) -> Option<usize> as usize));
        assert!(!is_ours(find(c"getpid").unwrap_or_default()));
    }
}
