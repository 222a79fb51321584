//! Our own `dlopen` and `dlmopen`: a library that can reach the driver is opened where the hooks are.
//!
//! Two requests put a library out of reach of a preloaded one. With `RTLD_DEEPBIND` it finds the driver's
//! functions, and the C library's `dlsym`, before it finds ours. In another namespace (`dlmopen`) it gets a
//! driver and a C library of its own, and nothing of ours is there at all. So in a process that is, or may
//! be, under a limit the flag is taken out of the request, and the base namespace is put in the place of the
//! other one. A limited process has one driver. A process without a limit gets what it asked for.
//!
//! The entry points are naked functions that jump to the real ones, as those of [`super`] do: the loader
//! looks at its caller's address for the search path (`RUNPATH`, `$ORIGIN`) and the namespace. What is
//! asked is altered on the way, in the registers' copies on the stack.
//!
//! # Decision: changed before, not mended afterwards
//! The flag could stay if the addresses that the new library was bound to were overwritten afterwards. But
//! its constructors run before the real `dlopen` returns, and may have asked for the driver by then;
//! functions that are bound at their first call have no address yet; and to come back here the call would
//! need a return address of ours, which is a wrong caller for the loader.
//!
//! # Decision: who keeps what it asked for
//! Programs use both requests to keep equal names of two libraries apart, and may break without. So a
//! library keeps what it asked for if its file shows that it cannot reach the driver ([`driver_dependency`]). Of a name
//! without a slash we do not know which file the loader will take, and such a library is taken for one that
//! can. Who swaps the file between our look and the loader's gets past, as does who reads the driver's
//! symbol table by hand; the agent sees what such a program takes.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};

use libc::{LM_ID_BASE, RTLD_DEEPBIND, RTLD_GLOBAL, RTLD_NOLOAD};

use super::loader::{DLMOPEN, DLOPEN};
use crate::{driver_dependency, process};

/// What the caller asks of the loader, as the entry points lay it on the stack.
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
    naked_asm!(
        "endbr64",
        "push 0",
        "push rdi",
        "push rsi",
        "mov rdi, rsp",
        "call {real}",
        "pop rsi",
        "pop rdi",
        "pop rdx",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        real = sym real_dlopen,
    )
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
    naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rdi, rsp",
        "call {real}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        real = sym real_dlmopen,
    )
}

/// The next library's `dlopen`, for the request as it may be granted; 0 where there is none.
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
        // The loader itself refuses other namespaces together with `RTLD_GLOBAL`, and says so.
        let asks_for_another_world = self.namespace != LM_ID_BASE && self.flags & RTLD_GLOBAL == 0;
        let opens_nothing = self.file.is_null() || self.flags & RTLD_NOLOAD != 0;
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
