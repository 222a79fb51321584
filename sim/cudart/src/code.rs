//! Code that is compiled into a program: nvcc makes each object file register its code before `main`.
//!
//! Registering loads nothing. A bundle becomes a driver library when the program first uses one of its kernels or
//! variables, as with lazy loading.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::driver::driver_functions;
use crate::error::{CudartError, INVALID_DEVICE_FUNCTION, INVALID_SYMBOL};

driver_functions! {
    cuLibraryLoadData(out: *mut *mut c_void, code: *const c_void, options: *mut c_void, values: *mut c_void, count: u32, own_options: *mut c_void, own_values: *mut c_void, own_count: u32) => c"cuLibraryLoadData" @ 12000;
    cuLibraryUnload(library: *mut c_void) => c"cuLibraryUnload" @ 12000;
    cuLibraryGetKernel(out: *mut *mut c_void, library: *mut c_void, name: *const c_char) => c"cuLibraryGetKernel" @ 12000;
    cuLibraryGetGlobal(address: *mut *mut c_void, bytes: *mut usize, library: *mut c_void, name: *const c_char) => c"cuLibraryGetGlobal" @ 12000;
    cuLibraryGetManaged(address: *mut *mut c_void, bytes: *mut usize, library: *mut c_void, name: *const c_char) => c"cuLibraryGetManaged" @ 12000;
}

/// What a program has registered. Handles of the driver are kept as numbers.
#[derive(Debug, Default)]
struct RegisteredCode {
    bundles: HashMap<usize, FatBinary>,
    next: usize,
    /// By the address of the kernel's host function.
    kernels: HashMap<usize, RegisteredKernel>,
    /// By the address of the host variable that stands for the device variable.
    variables: HashMap<usize, RegisteredVariable>,
}

#[derive(Debug)]
struct FatBinary {
    /// The address of nvcc's wrapper structure.
    code: usize,
    /// The driver's library, once loaded.
    library: Option<usize>,
}

#[derive(Debug)]
struct RegisteredKernel {
    bundle: usize,
    name: &'static CStr,
    /// The driver's kernel, once requested.
    handle: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
struct RegisteredVariable {
    bundle: usize,
    name: &'static CStr,
    bytes: usize,
    is_managed: bool,
}

static REGISTERED: Mutex<Option<RegisteredCode>> = Mutex::new(None);

/// The registrations, locked. The driver is called under the lock, so that code is loaded only once.
fn registered() -> MutexGuard<'static, Option<RegisteredCode>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_registered<T>(use_it: impl FnOnce(&mut RegisteredCode) -> T) -> T {
    use_it(registered().get_or_insert_default())
}

/// A number as a driver handle.
fn handle(number: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(number)
}

impl RegisteredCode {
    fn library(&mut self, bundle: usize) -> Result<*mut c_void, CudartError> {
        let bundle = self
            .bundles
            .get_mut(&bundle)
            .ok_or(INVALID_DEVICE_FUNCTION)?;
        if let Some(library) = bundle.library {
            return Ok(handle(library));
        }
        let (mut library, none) = (std::ptr::null_mut(), std::ptr::null_mut());
        let code = handle(bundle.code);
        cuLibraryLoadData(&raw mut library, code, none, none, 0, none, none, 0)?;
        bundle.library = Some(library.expose_provenance());
        Ok(library)
    }
}

/// The driver's kernel for a function that a program passes: the address of a host function, or a kernel or function of
/// the driver.
pub(crate) fn kernel(function: *const c_void) -> Result<*mut c_void, CudartError> {
    if function.is_null() {
        return Err(INVALID_DEVICE_FUNCTION);
    }
    with_registered(|all| {
        let Some(known) = all.kernels.get(&function.addr()) else {
            return Ok(function.cast_mut());
        };
        if let Some(known) = known.handle {
            return Ok(handle(known));
        }
        let (bundle, name) = (known.bundle, known.name);
        let library = all.library(bundle)?;
        let mut found = std::ptr::null_mut();
        cuLibraryGetKernel(&raw mut found, library, name.as_ptr())?;
        if let Some(known) = all.kernels.get_mut(&function.addr()) {
            known.handle = Some(found.expose_provenance());
        }
        Ok(found)
    })
}

/// The device address and the size of a variable.
pub(crate) fn variable(symbol: *const c_void) -> Result<(*mut c_void, usize), CudartError> {
    with_registered(|all| {
        let variable = *all.variables.get(&symbol.addr()).ok_or(INVALID_SYMBOL)?;
        let library = all.library(variable.bundle)?;
        let (mut address, mut bytes) = (std::ptr::null_mut(), variable.bytes);
        let (name, address_out, bytes_out) = (variable.name, &raw mut address, &raw mut bytes);
        if variable.is_managed {
            cuLibraryGetManaged(address_out, bytes_out, library, name.as_ptr())?;
        } else {
            cuLibraryGetGlobal(address_out, bytes_out, library, name.as_ptr())?;
        }
        Ok((address, bytes))
    })
}

/// The registered size of a variable. Loads no code.
pub(crate) fn variable_bytes(symbol: *const c_void) -> Result<usize, CudartError> {
    with_registered(|all| {
        let variable = all.variables.get(&symbol.addr());
        variable
            .map(|variable| variable.bytes)
            .ok_or(INVALID_SYMBOL)
    })
}

/// Registers a bundle. Returns a number as `void **`, which programs only pass back.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(code: *const c_void) -> *mut *mut c_void {
    with_registered(|all| {
        all.next += 1;
        let bundle = FatBinary {
            code: code.expose_provenance(),
            library: None,
        };
        all.bundles.insert(all.next, bundle);
        std::ptr::without_provenance_mut(all.next)
    })
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd(_bundle: *mut *mut c_void) {}

/// If the driver was already shut down, it has unloaded everything.
#[unsafe(no_mangle)]
extern "C" fn __cudaUnregisterFatBinary(bundle: *mut *mut c_void) {
    let bundle = bundle.addr();
    with_registered(|all| {
        all.kernels.retain(|_, kernel| kernel.bundle != bundle);
        all.variables
            .retain(|_, variable| variable.bundle != bundle);
        if let Some(library) = all.bundles.remove(&bundle).and_then(|known| known.library) {
            let _ = cuLibraryUnload(handle(library));
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFunction(
    bundle: *mut *mut c_void,
    host: *const c_void,
    _device: *mut c_char,
    name: *const c_char,
    _thread_limit: c_int,
    _thread: *mut c_void,
    _block: *mut c_void,
    _block_size: *mut c_void,
    _grid_size: *mut c_void,
    _warp: *mut c_int,
) {
    if name.is_null() {
        return;
    }
    // SAFETY: nvcc passes a string of the object file, which stays until the bundle is unregistered.
    let name = unsafe { CStr::from_ptr(name) };
    let kernel = RegisteredKernel {
        bundle: bundle.addr(),
        name,
        handle: None,
    };
    with_registered(|all| all.kernels.insert(host.addr(), kernel));
}

fn register_variable(
    bundle: *mut *mut c_void,
    host: *const c_void,
    name: *const c_char,
    bytes: usize,
    is_managed: bool,
) {
    if name.is_null() {
        return;
    }
    // SAFETY: nvcc passes a string of the object file, which stays until the bundle is unregistered.
    let name = unsafe { CStr::from_ptr(name) };
    let variable = RegisteredVariable {
        bundle: bundle.addr(),
        name,
        bytes,
        is_managed,
    };
    with_registered(|all| all.variables.insert(host.addr(), variable));
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterVar(
    bundle: *mut *mut c_void,
    host: *mut c_char,
    _device: *mut c_char,
    name: *const c_char,
    _is_external: c_int,
    bytes: usize,
    _is_constant: c_int,
    _is_global: c_int,
) {
    register_variable(bundle, host.cast(), name, bytes, false);
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterManagedVar(
    bundle: *mut *mut c_void,
    host: *mut *mut c_void,
    _device: *mut c_char,
    name: *const c_char,
    _is_external: c_int,
    bytes: usize,
    _is_constant: c_int,
    _is_global: c_int,
) {
    register_variable(bundle, host.cast(), name, bytes, true);
}

/// A host variable that kernels reach by its address. Nothing needs to be loaded.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterHostVar(
    _bundle: *mut *mut c_void,
    _name: *const c_char,
    _host: *mut c_char,
    _bytes: usize,
) {
}

/// Says that the bundle's managed variables may be used.
#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_bundle: *mut *mut c_void) -> c_char {
    1
}
