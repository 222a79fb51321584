//! Our own `dlopen` and `dlmopen`: a library that can reach the driver is opened where the hooks are.
//!
//! Two requests put a library out of reach of a preloaded one. With `RTLD_DEEPBIND` it finds the driver's functions,
//! and the C library's `dlsym`, before ours. In another namespace (`dlmopen`) it gets its own driver and C library,
//! and none of our functions. So in a process that has or may have a limit, the flag is removed, and the base
//! namespace replaces the requested one. A limited process has one driver. A process without a limit gets what it
//! asked for.
//!
//! The entry points are naked functions that jump to the real ones, like those of [`super`]: the loader uses its
//! caller's address to find the search path (`RUNPATH`, `$ORIGIN`) and the namespace. The request is changed on the
//! way, in the copies of the registers on the stack.
//!
//! # Decision: changed before, not repaired afterwards
//! The flag could stay if we overwrote the addresses that the new library was bound to. But its constructors run
//! before the real `dlopen` returns, and may have looked up the driver by then. Functions that are bound at their
//! first call have no address yet. And to return here, the call would need our return address, which is the wrong
//! caller for the loader.
//!
//! # Decision: who keeps what it asked for
//! Programs use both requests to separate equal names in two libraries, and may break without them. So a library
//! keeps what it asked for if its file shows that it cannot reach the driver ([`driver_dependency`]). For a name
//! without a slash we do not know which file the loader will take, so we assume that the library can. A program that
//! swaps the file between our check and the loader's gets past us, as does one that reads the driver's symbol table
//! itself. The agent sees what such a program takes.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};

use libc::{LM_ID_BASE, RTLD_DEEPBIND, RTLD_GLOBAL, RTLD_NOLOAD};

use super::loader::InterposedFunction;
use crate::arch::{jump_to_dlmopen, jump_to_dlopen};
use crate::{driver_dependency, process};

pub(super) static DLOPEN: InterposedFunction =
    InterposedFunction::new(c"dlopen", Some(c"__libc_dlopen_mode"), || {
        dlopen as *const () as usize
    });
pub(super) static DLMOPEN: InterposedFunction =
    InterposedFunction::new(c"dlmopen", None, || dlmopen as *const () as usize);

/// The caller's request to the loader, as the entry points lay it out on the stack.
#[repr(C)]
struct DlopenRequest {
    flags: c_int,
    _rest_of_the_register: u32,
    file: *const c_char,
    namespace: c_long,
}

/// Stands in for the C library's `dlopen`.
///
/// # Safety
/// As for `dlopen`.
#[unsafe(naked)]
#[cfg_attr(feature = "exported", unsafe(no_mangle))]
pub unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    jump_to_dlopen!(real_dlopen)
}

/// Stands in for the C library's `dlmopen`.
///
/// # Safety
/// As for `dlmopen`.
#[unsafe(naked)]
#[cfg_attr(feature = "exported", unsafe(no_mangle))]
pub unsafe extern "C" fn dlmopen(
    namespace: c_long,
    file: *const c_char,
    flags: c_int,
) -> *mut c_void {
    jump_to_dlmopen!(real_dlmopen)
}

/// The next library's `dlopen`, after the request was changed where necessary; 0 if there is none.
///
/// # Safety
/// The request must be what a caller of `dlopen` asked.
unsafe extern "C" fn real_dlopen(request: &mut DlopenRequest) -> usize {
    // SAFETY: passed on from the caller.
    unsafe { request.stay_where_the_hooks_are() };
    DLOPEN.real().unwrap_or(0)
}

/// The same for `dlmopen`, which musl does not have.
///
/// # Safety
/// The request must be what a caller of `dlmopen` asked.
unsafe extern "C" fn real_dlmopen(request: &mut DlopenRequest) -> usize {
    // SAFETY: passed on from the caller.
    unsafe { request.stay_where_the_hooks_are() };
    DLMOPEN.real().unwrap_or(0)
}

impl DlopenRequest {
    /// # Safety
    /// `file` must be null or a string.
    unsafe fn stay_where_the_hooks_are(&mut self) {
        let asks_to_bind_deep = self.flags & RTLD_DEEPBIND != 0;
        // The loader itself rejects other namespaces together with `RTLD_GLOBAL`, with its own message.
        let asks_for_another_world = self.namespace != LM_ID_BASE && self.flags & RTLD_GLOBAL == 0;
        let opens_nothing = self.file.is_null() || self.flags & RTLD_NOLOAD != 0;
        if !opens_nothing {
            process::note_opened();
        }
        if opens_nothing || !(asks_to_bind_deep || asks_for_another_world) {
            return;
        }
        if !process::may_be_limited() {
            return;
        }
        // SAFETY: it is not null, so it is a string.
        let file = unsafe { CStr::from_ptr(self.file) };
        if asks_for_another_world {
            if driver_dependency::is_harmless_in_another_namespace(file) {
                return;
            }
            self.namespace = LM_ID_BASE;
        }
        if asks_to_bind_deep && !driver_dependency::is_harmless_when_bound_deep(file) {
            self.flags &= !RTLD_DEEPBIND;
        }
    }
}
