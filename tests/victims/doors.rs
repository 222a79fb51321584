//! The ways in which a program can find the driver at run time. `VICTIM_DOOR` selects one:
//! - none: `dlsym`;
//! - `getproc`: `cuGetProcAddress` with the version of each table row, and `perthread`: the same with per-thread
//!   default streams;
//! - `deepbind` and `namespace`: `dlsym` in a driver that was opened with `RTLD_DEEPBIND`, or in a linker namespace of
//!   its own;
//! - `plugin` and `plugin-apart`: the same in a library that opens the driver by itself;
//! - `symbols`: the library's own symbol table, without calling any lookup function.
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

/// A library that finds the driver by itself.
const PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plugin.so"));

type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

impl Driver {
    /// The driver, found in the way that the environment selects. `None` if there is no driver.
    pub(crate) fn open() -> Option<Self> {
        let door = env::var("VICTIM_DOOR");
        let name = env::var("VICTIM_DRIVER").unwrap_or_else(|_| "libcuda.so.1".to_owned());
        let library = match door.as_deref() {
            Ok("namespace") => open_apart(&name)?,
            Ok("deepbind") => open_with(&name, RTLD_NOW | libc::RTLD_DEEPBIND)?,
            Ok("plugin") => open_with(&plugin()?, RTLD_NOW | libc::RTLD_DEEPBIND)?,
            Ok("plugin-apart") => open_apart(&plugin()?)?,
            Ok(_) | Err(_) => open_with(&name, RTLD_NOW)?,
        };
        let driver = match door.as_deref() {
            Ok("getproc") => Self::by_get_proc_address(&library, 0)?,
            Ok("perthread") => Self::by_get_proc_address(&library, PER_THREAD)?,
            Ok("plugin" | "plugin-apart") => Self::by_plugin(&library)?,
            Ok("symbols") => symbols::driver(&name)?,
            Ok(_) | Err(_) => Self::new(|name, _, _| exported(&library, name)),
        };
        // The driver stays loaded for the life of the process, since its functions are used.
        mem::forget(library);
        Some(driver)
    }

    fn by_plugin(library: &Library) -> Option<Self> {
        type Find = unsafe extern "C" fn(*const c_char) -> *mut c_void;
        // SAFETY: the signature is that of the function in `plugin.c`.
        let find = unsafe { library.get::<Find>(b"plugin_find\0") }.ok()?;
        let ask = |name: &str| {
            let name = CString::new(name).ok()?;
            // SAFETY: the name is a C string.
            Some(unsafe { find(name.as_ptr()) })
        };
        let is_there = !ask("cuInit")?.is_null();
        is_there.then(|| Self::new(|name, _, _| ask(name).unwrap_or(ptr::null_mut())))
    }

    fn by_get_proc_address(library: &Library, flags: u64) -> Option<Self> {
        // SAFETY: the signature is that of `cuGetProcAddress_v2` in the driver's header.
        let ask = unsafe { library.get::<GetProcAddress>(b"cuGetProcAddress_v2\0") }.ok()?;
        Some(Self::new(|_, base, version| {
            let mut function = ptr::null_mut();
            let Ok(base) = CString::new(base) else {
                return function;
            };
            // Per-thread variants exist since CUDA 7.0.
            let version = match flags {
                PER_THREAD => version.max(7000),
                _ => version,
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

/// The plugin's path: a file in memory that the loader can open.
fn plugin() -> Option<String> {
    // SAFETY: the name is a C string. Without MFD_CLOEXEC: the file must outlive this function.
    let file = unsafe { libc::memfd_create(c"plugin".as_ptr(), 0) };
    let path = format!("/proc/self/fd/{file}");
    std::fs::write(&path, PLUGIN).ok().map(|()| path)
}

fn open_with(name: &str, flags: c_int) -> Option<Library> {
    // SAFETY: every CUDA program runs the driver's initialisers.
    unsafe { Library::open(Some(name), flags) }.ok()
}

/// Opens the library, with its own C library, in a new linker namespace.
fn open_apart(name: &str) -> Option<Library> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name is a C string; every CUDA program runs the driver's initialisers.
    let handle = unsafe { libc::dlmopen(libc::LM_ID_NEWLM, name.as_ptr(), RTLD_NOW) };
    // SAFETY: the handle is from the loader, and nothing else closes it.
    (!handle.is_null()).then(|| unsafe { Library::from_raw(handle) })
}

/// The result of `dlsym`, or null.
fn exported(library: &Library, name: &str) -> *mut c_void {
    let Ok(name) = CString::new(name) else {
        return ptr::null_mut();
    };
    // SAFETY: the symbol is only used as an address here.
    match unsafe { library.get::<*mut c_void>(name.as_bytes_with_nul()) } {
        Ok(symbol) => symbol.into_raw(),
        Err(_) => ptr::null_mut(),
    }
}
