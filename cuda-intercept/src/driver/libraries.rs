//! The driver's libraries, once the program has loaded them.
//!
//! They are recognised by their soname, not by their path. So a driver in a Python wheel, in a compatibility folder or
//! under WSL is found too. This library never loads a driver: a program without one gets what it would get without us.
//! A driver that is found is pinned, so that its addresses stay valid.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::ControlFlow;
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use super::required_functions;
use crate::elf::{self, LoadedObject};
use crate::errno;
use crate::table::{COUNT, DriverLibrary, ROWS};

/// The real function of each row; 0 if there is none or it is not known yet.
/// Written by: [`load`], always with the same values. Read by: every hook. Release/Acquire.
static REAL: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

/// Whether a library was found and its rows are filled in.
/// Written by: [`load`], after `REAL`. Read by: every lookup. Release/Acquire.
static FOUND: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// The address range of each library, which is pinned; zeroes until it is found.
/// Written by: [`load`], before `FOUND`, always with the same values. Read by: every lookup, and hooks that check
/// their caller. Release/Acquire.
static SPANS: [[AtomicUsize; 2]; 2] = [const { [const { AtomicUsize::new(0) }; 2] }; 2];

/// Whether an address lies in the hooked library. Looks for the library first.
pub(crate) fn is_in(library: DriverLibrary, address: usize) -> bool {
    load(library);
    is_within(library, address)
}

/// Whether an address lies in a library, if that was found already.
#[inline]
pub(crate) fn is_within(library: DriverLibrary, address: usize) -> bool {
    let Some([start, end]) = SPANS.get(library as usize) else {
        return false;
    };
    (start.load(Acquire)..end.load(Acquire)).contains(&address)
}

/// A function of the hooked library, by name. The function itself may be unhooked.
pub(crate) fn function(library: DriverLibrary, name: &CStr) -> Option<usize> {
    load(library);
    let [start, _] = SPANS.get(library as usize)?;
    let start = start.load(Acquire);
    elf::for_each(|object| {
        if object.span().start == start {
            ControlFlow::Break(object.symbol(name))
        } else {
            ControlFlow::Continue(())
        }
    })?
}

/// The real function of a row, if the library is loaded and has it.
#[inline]
pub(crate) fn real(place: usize, library: DriverLibrary) -> Option<usize> {
    let known = REAL.get(place)?.load(Acquire);
    if known != 0 {
        return Some(known);
    }
    load(library);
    let known = REAL.get(place)?.load(Acquire);
    (known != 0).then_some(known)
}

/// The row whose real function is at this address.
pub(crate) fn row_at(address: usize) -> Option<usize> {
    load(DriverLibrary::Cuda);
    REAL.iter().position(|real| real.load(Acquire) == address)
}

/// Looks for a library in the process, until it is found.
fn load(library: DriverLibrary) {
    let Some(found) = FOUND.get(library as usize) else {
        return;
    };
    if found.load(Acquire) {
        return;
    }
    let _errno = errno::ErrnoGuard::now();
    let path = elf::for_each(|object| {
        if object.is_named(library.soname()) {
            fill(library, object);
            ControlFlow::Break(object.path())
        } else {
            ControlFlow::Continue(())
        }
    });
    if let Some(path) = path {
        pin(path);
        found.store(true, Release);
    }
}

fn fill(library: DriverLibrary, object: &LoadedObject) {
    if let Some([start, end]) = SPANS.get(library as usize) {
        start.store(object.span().start, Release);
        end.store(object.span().end, Release);
    }
    for (row, real) in ROWS.iter().zip(&REAL) {
        if row.library == library {
            real.store(object.address_of(row.exported).unwrap_or(0), Release);
        }
    }
    required_functions::fill(library, object);
}

/// Keeps a loaded library loaded for good. It is already loaded, so this neither loads nor fails.
fn pin(path: *const c_char) {
    type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    let Some(dlopen) = defined(c"dlopen") else {
        return;
    };
    // SAFETY: the address is that of the C library's `dlopen`.
    let dlopen = unsafe { core::mem::transmute::<usize, Dlopen>(dlopen) };
    // SAFETY: the path is the linker's own string for an object that is loaded.
    unsafe {
        dlopen(
            path,
            libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE,
        )
    };
}

/// Clears the `dlerror` message of a failed lookup of ours.
pub(crate) fn forget_message() {
    type Dlerror = unsafe extern "C" fn() -> *mut c_char;
    if let Some(dlerror) = defined(c"dlerror") {
        // SAFETY: the address is that of the C library's `dlerror`.
        let dlerror = unsafe { core::mem::transmute::<usize, Dlerror>(dlerror) };
        // SAFETY: it takes nothing.
        unsafe { dlerror() };
    }
}

/// The first definition of a function in the process.
fn defined(name: &CStr) -> Option<usize> {
    elf::for_each(|object| match object.symbol(name) {
        Some(address) => ControlFlow::Break(address),
        None => ControlFlow::Continue(()),
    })
}
