//! The driver's functions: each is looked up once, by `cuGetProcAddress`, in the version that its row names.
//!
//! Only `cuGetProcAddress` itself comes from the dynamic linker. So a preloaded library in front of the driver sees the
//! same lookups as from NVIDIA's runtime.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::error::{CudartError, INSUFFICIENT_DRIVER, NOT_SUPPORTED, check};

/// `cuGetProcAddress` of CUDA 12: name, address, version, flags, status.
type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut u32) -> i32;

/// A function of the driver.
#[derive(Debug)]
pub(crate) struct DriverFunction {
    name: &'static CStr,
    version: i32,
    /// Written by: the thread that looks it up. Read by: every call. Relaxed: code is never written.
    address: AtomicPtr<c_void>,
}

impl DriverFunction {
    /// A function that was not looked up yet.
    pub(crate) const fn new(name: &'static CStr, version: i32) -> Self {
        let address = AtomicPtr::new(std::ptr::null_mut());
        Self {
            name,
            version,
            address,
        }
    }

    /// The function's address in the driver.
    pub(crate) fn address(&self) -> Result<*mut c_void, CudartError> {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return Ok(known);
        }
        let found = resolve(self.name.as_ptr(), self.version, 0)?.0;
        if found.is_null() {
            return Err(NOT_SUPPORTED);
        }
        self.address.store(found, Ordering::Relaxed);
        Ok(found)
    }
}

/// Looks up a function. Returns its address and the driver's status.
pub(crate) fn resolve(
    name: *const c_char,
    version: i32,
    flags: u64,
) -> Result<(*mut c_void, u32), CudartError> {
    let get = get_proc_address().ok_or(INSUFFICIENT_DRIVER)?;
    let mut found = std::ptr::null_mut();
    let mut status = 0;
    // SAFETY: the function has this signature, and all pointers are valid for the call.
    let code = unsafe { get(name, &raw mut found, version, flags, &raw mut status) };
    // An old driver returns an error code where a new one sets the status.
    match check(code) {
        Ok(()) => Ok((found, status)),
        Err(CudartError(500)) => Ok((std::ptr::null_mut(), 1)),
        Err(error) => Err(error),
    }
}

fn get_proc_address() -> Option<GetProcAddress> {
    static FOUND: OnceLock<Option<GetProcAddress>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: opening a driver runs its constructors, which every CUDA program does.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return None;
        }
        // SAFETY: the handle is open and the name is a C string.
        let found = unsafe { libc::dlsym(library, c"cuGetProcAddress_v2".as_ptr()) };
        // SAFETY: a driver's `cuGetProcAddress_v2` has this signature.
        (!found.is_null())
            .then(|| unsafe { std::mem::transmute::<*mut c_void, GetProcAddress>(found) })
    })
}

/// Makes functions that call the driver: `name (arguments) => "base name" @ version;`
macro_rules! driver_functions {
    ($( $name:ident ($($argument:ident: $type:ty),* $(,)?) => $driver:literal @ $version:literal; )*) => { $(
        pub(crate) fn $name($($argument: $type),*) -> $crate::error::Outcome {
            static FUNCTION: $crate::driver::DriverFunction = $crate::driver::DriverFunction::new($driver, $version);
            let address = FUNCTION.address()?;
            // SAFETY: the driver's header has this signature for this name and version.
            let function = unsafe {
                std::mem::transmute::<
                    *mut std::ffi::c_void,
                    unsafe extern "C" fn($($type),*) -> i32,
                >(address)
            };
            // SAFETY: the arguments are the program's own or are valid for the call.
            $crate::error::check(unsafe { function($($argument),*) })
        }
    )* };
}
pub(crate) use driver_functions;

driver_functions! {
    cuInit(flags: u32) => c"cuInit" @ 2000;
    cuGetErrorString(code: i32, text: *mut *const c_char) => c"cuGetErrorString" @ 6000;
    cuDeviceGet(device: *mut i32, ordinal: i32) => c"cuDeviceGet" @ 2000;
    cuDeviceGetCount(count: *mut i32) => c"cuDeviceGetCount" @ 2000;
    cuDeviceGetAttribute(value: *mut i32, attribute: u32, device: i32) => c"cuDeviceGetAttribute" @ 2000;
    cuCtxGetCurrent(context: *mut *mut c_void) => c"cuCtxGetCurrent" @ 4000;
    cuCtxSetCurrent(context: *mut c_void) => c"cuCtxSetCurrent" @ 4000;
    cuCtxGetDevice(device: *mut i32) => c"cuCtxGetDevice" @ 2000;
    cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: i32) => c"cuDevicePrimaryCtxRetain" @ 7000;
    cuDevicePrimaryCtxReset(device: i32) => c"cuDevicePrimaryCtxReset" @ 11000;
    cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) => c"cuDevicePrimaryCtxSetFlags" @ 11000;
    cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) => c"cuDevicePrimaryCtxGetState" @ 7000;
    cuStreamSynchronize(stream: crate::default_stream::RuntimeStream) => c"cuStreamSynchronize" @ 2000;
}
