//! The doors of a program that looks for the driver at run time: `dlsym`, or, where `VICTIM_DOOR` is
//! `getproc`, `cuGetProcAddress` with the version that each row of the table names; `perthread` is the
//! same with a default stream for each thread.

use std::env;
use std::ffi::{CString, c_char, c_int, c_void};
use std::mem;

use libloading::os::unix::{Library, RTLD_NOW};

use crate::driver::Driver;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

impl Driver {
    /// The driver through the door that the environment names; `None` where there is no driver.
    pub(crate) fn open() -> Option<Self> {
        // SAFETY: the driver's initialisers are what every CUDA program runs.
        let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW) }.ok()?;
        let driver = match env::var("VICTIM_DOOR").as_deref() {
            Ok("getproc") => Self::by_get_proc_address(&library, 0)?,
            Ok("perthread") => Self::by_get_proc_address(&library, PER_THREAD)?,
            Ok(_) | Err(_) => Self::new(|name, _, _| exported(&library, name)),
        };
        // The driver stays for the life of the process, as the functions do.
        mem::forget(library);
        Some(driver)
    }

    fn by_get_proc_address(library: &Library, flags: u64) -> Option<Self> {
        // SAFETY: the signature is that of `cuGetProcAddress_v2` in the driver's header.
        let ask = unsafe { library.get::<GetProcAddress>(b"cuGetProcAddress_v2\0") }.ok()?;
        Some(Self::new(|_, base, version| {
            let mut function = std::ptr::null_mut();
            let Ok(base) = CString::new(base) else {
                return function;
            };
            // SAFETY: the name is a C string, both results are valid, and the status may be null.
            unsafe {
                ask(
                    base.as_ptr(),
                    &raw mut function,
                    version,
                    flags,
                    std::ptr::null_mut(),
                )
            };
            function
        }))
    }
}

/// The address that `dlsym` gives; null for none.
fn exported(library: &Library, name: &str) -> *mut c_void {
    let Ok(name) = CString::new(name) else {
        return std::ptr::null_mut();
    };
    // SAFETY: the symbol is only taken as an address here.
    match unsafe { library.get::<*mut c_void>(name.as_bytes_with_nul()) } {
        Ok(symbol) => symbol.into_raw(),
        Err(_) => std::ptr::null_mut(),
    }
}
