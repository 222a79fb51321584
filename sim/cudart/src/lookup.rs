//! How programs find driver functions through the runtime.

use std::ffi::{c_char, c_void};

use crate::driver;
use crate::entry::entry_points;
use crate::error::{INVALID_VALUE, Outcome};

entry_points! {
    nothing cudaGetDriverEntryPoint_12(name: *const c_char, out: *mut *mut c_void, flags: u64, status: *mut u32) = entry_point_12;
    nothing cudaGetDriverEntryPoint_13(name: *const c_char, out: *mut *mut c_void, flags: u64, status: *mut u32) = entry_point_13;
    nothing cudaGetDriverEntryPoint_12_ptsz(name: *const c_char, out: *mut *mut c_void, flags: u64, status: *mut u32) = entry_point_12_on_thread;
    nothing cudaGetDriverEntryPoint_13_ptsz(name: *const c_char, out: *mut *mut c_void, flags: u64, status: *mut u32) = entry_point_13_on_thread;
    nothing cudaGetDriverEntryPointByVersion(name: *const c_char, out: *mut *mut c_void, version: u32, flags: u64, status: *mut u32) = by_version;
    nothing cudaGetDriverEntryPointByVersion_ptsz(name: *const c_char, out: *mut *mut c_void, version: u32, flags: u64, status: *mut u32) = by_version_on_thread;
}

/// `cudaEnablePerThreadDefaultStream`, which has the value of the driver's flag.
const PER_THREAD: u64 = 2;

fn find(
    name: *const c_char,
    out: *mut *mut c_void,
    version: u32,
    flags: u64,
    status: *mut u32,
) -> Outcome {
    if name.is_null() || out.is_null() {
        return Err(INVALID_VALUE);
    }
    let version = i32::try_from(version).map_err(|_| INVALID_VALUE)?;
    let (found, why) = driver::resolve(name, version, flags)?;
    // SAFETY: the program gave a valid pointer for the address.
    unsafe { out.write(found) };
    if !status.is_null() {
        // SAFETY: the program gave a valid pointer for the status, which has the driver's values.
        unsafe { status.write(why) };
    }
    Ok(())
}

/// The default flags become those of a program compiled with per-thread default streams.
fn on_thread(flags: u64) -> u64 {
    if flags == 0 { PER_THREAD } else { flags }
}

fn entry_point_12(
    name: *const c_char,
    out: *mut *mut c_void,
    flags: u64,
    status: *mut u32,
) -> Outcome {
    find(name, out, 12090, flags, status)
}

fn entry_point_13(
    name: *const c_char,
    out: *mut *mut c_void,
    flags: u64,
    status: *mut u32,
) -> Outcome {
    find(name, out, 13000, flags, status)
}

fn entry_point_12_on_thread(
    name: *const c_char,
    out: *mut *mut c_void,
    flags: u64,
    status: *mut u32,
) -> Outcome {
    find(name, out, 12090, on_thread(flags), status)
}

fn entry_point_13_on_thread(
    name: *const c_char,
    out: *mut *mut c_void,
    flags: u64,
    status: *mut u32,
) -> Outcome {
    find(name, out, 13000, on_thread(flags), status)
}

fn by_version(
    name: *const c_char,
    out: *mut *mut c_void,
    version: u32,
    flags: u64,
    status: *mut u32,
) -> Outcome {
    find(name, out, version, flags, status)
}

fn by_version_on_thread(
    name: *const c_char,
    out: *mut *mut c_void,
    version: u32,
    flags: u64,
    status: *mut u32,
) -> Outcome {
    find(name, out, version, on_thread(flags), status)
}
