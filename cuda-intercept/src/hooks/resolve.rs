//! The third door: `cuGetProcAddress`.
//!
//! The driver is asked with the caller's own version and flags, and only then is the pointer that it
//! chose looked at: if it is the driver's function of a row, the caller gets the hook of exactly that
//! row. So a caller of version 3020 gets the hook with the signature of 3020, one that asked for
//! per-thread streams gets the hook of those, and status and errors are the driver's own. A name is
//! never guessed from.

use core::ffi::c_char;

use crate::driver;
use crate::foreign::{Opaque, SUCCESS, Status};
use crate::table::ROWS;

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut Opaque, i32, u64) -> Status;
type GetProcAddressV2 =
    unsafe extern "C" fn(*const c_char, *mut Opaque, i32, u64, *mut i32) -> Status;

/// # Safety
/// `function` must be null or point to what the driver wrote.
unsafe fn substitute(function: *mut Opaque) {
    if function.is_null() {
        return;
    }
    // SAFETY: the caller guarantees it.
    let found = unsafe { function.read() };
    if found.is_null() {
        return;
    }
    if let Some(row) = driver::row_at(found as usize).and_then(|place| ROWS.get(place)) {
        // SAFETY: the caller guarantees it.
        unsafe { function.write(row.hook_or(found as usize) as Opaque) };
    }
}

pub(crate) unsafe fn get_proc_address(
    real: GetProcAddress,
    symbol: *const c_char,
    function: *mut Opaque,
    version: i32,
    flags: u64,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(symbol, function, version, flags) };
    if status == SUCCESS {
        // SAFETY: the driver accepted the pointer.
        unsafe { substitute(function) };
    }
    status
}

pub(crate) unsafe fn get_proc_address_v2(
    real: GetProcAddressV2,
    symbol: *const c_char,
    function: *mut Opaque,
    version: i32,
    flags: u64,
    found: *mut i32,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(symbol, function, version, flags, found) };
    if status == SUCCESS {
        // SAFETY: the driver accepted the pointer.
        unsafe { substitute(function) };
    }
    status
}
