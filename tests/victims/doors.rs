//! The doors of a program that looks for the driver at run time. `VICTIM_DOOR` names one:
//! - none: `dlsym`;
//! - `getproc`: `cuGetProcAddress` with the version that each row of the table names, and `perthread`: the
//!   same with a default stream for each thread;
//! - `deepbind` and `namespace`: `dlsym` in a library that was opened to see no other, or in a world of its
//!   own;
//! - `symbols`: the library's own symbol table, where no function is asked at all.
//!
//! `VICTIM_DRIVER` names another file of the driver than the loader would find.

use std::env;
use std::ffi::{CString, c_char, c_int, c_void};
use std::{mem, ptr};

use libloading::os::unix::{Library, RTLD_NOW};

use crate::driver::Driver;
use crate::symbols;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

impl Driver {
    /// The driver through the door that the environment names; `None` where there is no driver.
    pub(crate) fn open() -> Option<Self> {
        let door = env::var("VICTIM_DOOR");
        let name = env::var("VICTIM_DRIVER").unwrap_or_else(|_| "libcuda.so.1".to_owned());
        let library = match door.as_deref() {
            Ok("namespace") => open_apart(&name)?,
            Ok("deepbind") => open_with(&name, RTLD_NOW | libc::RTLD_DEEPBIND)?,
            Ok(_) | Err(_) => open_with(&name, RTLD_NOW)?,
        };
        let driver = match door.as_deref() {
            Ok("getproc") => Self::by_get_proc_address(&library, 0)?,
            Ok("perthread") => Self::by_get_proc_address(&library, PER_THREAD)?,
            Ok("symbols") => {
                let symbols = symbols::of_loaded(&name)?;
                Self::new(|name, _, _| symbols.get(name).map_or(ptr::null_mut(), |at| *at as _))
            }
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
            let mut function = ptr::null_mut();
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
                    ptr::null_mut(),
                )
            };
            function
        }))
    }
}

fn open_with(name: &str, flags: c_int) -> Option<Library> {
    // SAFETY: the driver's initialisers are what every CUDA program runs.
    unsafe { Library::open(Some(name), flags) }.ok()
}

/// Opens the library, and with it another C library, in a new namespace of the loader.
fn open_apart(name: &str) -> Option<Library> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name is a C string; the initialisers are what every CUDA program runs.
    let handle = unsafe { libc::dlmopen(libc::LM_ID_NEWLM, name.as_ptr(), RTLD_NOW) };
    // SAFETY: the loader gave the handle and nobody else closes it.
    (!handle.is_null()).then(|| unsafe { Library::from_raw(handle) })
}

/// The address that `dlsym` gives; null for none.
fn exported(library: &Library, name: &str) -> *mut c_void {
    let Ok(name) = CString::new(name) else {
        return ptr::null_mut();
    };
    // SAFETY: the symbol is only taken as an address here.
    match unsafe { library.get::<*mut c_void>(name.as_bytes_with_nul()) } {
        Ok(symbol) => symbol.into_raw(),
        Err(_) => ptr::null_mut(),
    }
}
