//! `cuGetProcAddress`.
//!
//! The driver is called with the caller's own version and flags. Only then is the returned pointer checked: if it is
//! the driver's function of a row, the caller gets the hook of exactly that row. So a caller that asked for version
//! 3020 gets the hook with that signature, and one that asked for per-thread streams gets that hook. Status and
//! errors are the driver's own. Nothing is guessed from a name.

use core::ffi::c_char;

use crate::calls;
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
    let row = driver::row_at(found as usize).and_then(|place| ROWS.get(place));
    let substitute = match row {
        Some(row) => row.hook_or(found as usize),
        None => calls::seen(found as usize),
    };
    // SAFETY: the caller guarantees it.
    unsafe { function.write(substitute as Opaque) };
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
