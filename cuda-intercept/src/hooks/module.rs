//! Modules and libraries: an image is charged by what its file says, before the driver loads it.
//!
//! # Decision: what a lazy driver loads later
//! A driver that loads lazily (the default since CUDA 12.2) allocates variables when it loads an image or first uses
//! a library. It loads code function by function at launches, which cannot be refused. So variables are always
//! charged. Code is charged if the driver says that it loads eagerly, or if the image is a single one, which is
//! small. The code of a bundle under a lazy driver is not charged. Frameworks bring gigabytes of code and use a few
//! functions, so to charge everything would take from a program what a smaller card would give it. The agent sees
//! what was loaded and counts it as overhead.

use core::ffi::c_char;

use apportion_abi::account::ApiFamily;
use apportion_gate::image::ImageFootprint;
use apportion_gate::{Card, ContextId, LoadedModule, worst_case};

use crate::foreign::{OUT_OF_MEMORY, Opaque, SUCCESS, Status};
use crate::process::{self, ChargeScope, ProcessState};
use crate::{driver, image, launch_cache};

type Load = unsafe extern "C" fn(*mut Opaque, Opaque) -> Status;
type LoadFile = unsafe extern "C" fn(*mut Opaque, *const c_char) -> Status;
type LoadWith = unsafe extern "C" fn(*mut Opaque, Opaque, u32, Opaque, Opaque) -> Status;
type LoadLibrary =
    unsafe extern "C" fn(*mut Opaque, Opaque, Opaque, Opaque, u32, Opaque, Opaque, u32) -> Status;
type LoadLibraryFile = unsafe extern "C" fn(
    *mut Opaque,
    *const c_char,
    Opaque,
    Opaque,
    u32,
    Opaque,
    Opaque,
    u32,
) -> Status;
type Unload = unsafe extern "C" fn(Opaque) -> Status;

/// The charge for an image; zero if the image cannot be read.
fn cost(image: Option<ImageFootprint>) -> u64 {
    let Some(image) = image else { return 0 };
    if image.is_bundled && driver::loads_lazily() {
        image.variables
    } else {
        image.variables.saturating_add(image.code)
    }
}

/// Charges an image to a context, if it fits.
fn put(process: &ProcessState, context: ContextId, card: Card, bytes: u64) -> bool {
    if process.allocations.lock().loads.fill(context, bytes) {
        return true;
    }
    let charged = worst_case(bytes);
    if !process.charge_for(ApiFamily::Module, card, charged) {
        return false;
    }
    let cost = process.allocations.lock().loads.add(context, card, bytes);
    process.adjust(card, charged, cost);
    process.show_modules(card);
    true
}

/// Uncharges an image in a context.
fn take_out(process: &ProcessState, context: ContextId, bytes: u64) {
    let taken = process.allocations.lock().loads.remove(context, bytes);
    if let Some((card, freed)) = taken {
        process.uncharge(card, freed);
        process.show_modules(card);
    }
}

/// Loads an image into the current context.
fn open(module: *mut Opaque, bytes: u64, ask: impl Fn(*mut Opaque) -> Status) -> Status {
    let site = match process::charge_scope() {
        ChargeScope::Charged(site) if !module.is_null() && bytes > 0 => site,
        ChargeScope::Closed => return OUT_OF_MEMORY,
        ChargeScope::Charged(_) | ChargeScope::Free => return ask(module),
    };
    let (process, context) = (site.process, site.context);
    if !put(process, context, site.card, bytes) {
        return OUT_OF_MEMORY;
    }
    let mut loaded: Opaque = core::ptr::null_mut();
    let status = ask(&raw mut loaded);
    if status != SUCCESS {
        take_out(process, context, bytes);
        return status;
    }
    let named = LoadedModule { context, bytes };
    process.allocations.lock().loads.name(loaded as u64, named);
    // SAFETY: the caller passes a place for the module, as to the driver.
    unsafe { module.write(loaded) };
    status
}

pub(crate) unsafe fn load(real: Load, module: *mut Opaque, code: Opaque) -> Status {
    // SAFETY: the caller passes an image, as to the driver.
    let found = process::limited().and_then(|_| unsafe { image::at(code) });
    // SAFETY: the arguments are the caller's, the place the caller's or a local variable.
    open(module, cost(found), |place| unsafe { real(place, code) })
}

pub(crate) unsafe fn load_file(real: LoadFile, module: *mut Opaque, path: *const c_char) -> Status {
    // SAFETY: the caller passes a path, as to the driver.
    let found = process::limited().and_then(|_| unsafe { image::in_file(path) });
    // SAFETY: as for `load`.
    open(module, cost(found), |place| unsafe { real(place, path) })
}

pub(crate) unsafe fn load_with(
    real: LoadWith,
    module: *mut Opaque,
    code: Opaque,
    count: u32,
    options: Opaque,
    values: Opaque,
) -> Status {
    // SAFETY: as for `load`.
    let found = process::limited().and_then(|_| unsafe { image::at(code) });
    // SAFETY: as for `load`.
    open(module, cost(found), |place| unsafe {
        real(place, code, count, options, values)
    })
}

pub(crate) unsafe fn unload(real: Unload, module: Opaque) -> Status {
    // SAFETY: the module is the caller's own.
    let ask = || unsafe { real(module) };
    let Some(process) = process::limited() else {
        return ask();
    };
    launch_cache::forget();
    let Some(named) = process.allocations.lock().loads.take(module as u64) else {
        return ask();
    };
    let status = ask();
    match status {
        SUCCESS => take_out(process, named.context, named.bytes),
        _ => process.allocations.lock().loads.name(module as u64, named),
    }
    status
}

/// Uncharges a library in all contexts up to `last`, or in all.
fn take_out_of_all(process: &ProcessState, last: Option<ContextId>, bytes: u64) {
    let mut before = None;
    loop {
        let next = process.allocations.lock().context_after(before);
        match next.filter(|(context, _)| last.is_none_or(|last| *context <= last)) {
            Some((context, _)) => take_out(process, context, bytes),
            None => return,
        }
        before = next.map(|(context, _)| context);
    }
}

/// Charges a library in every context, or in none.
fn put_into_all(process: &ProcessState, bytes: u64) -> bool {
    let mut before = None;
    loop {
        let next = process.allocations.lock().context_after(before);
        let Some((context, card)) = next else {
            return true;
        };
        if !put(process, context, card, bytes) {
            if before.is_some() {
                take_out_of_all(process, before, bytes);
            }
            return false;
        }
        before = Some(context);
    }
}

/// Loads a library into all contexts.
fn open_library(library: *mut Opaque, bytes: u64, ask: impl Fn(*mut Opaque) -> Status) -> Status {
    // This records the current context, if no hook saw its creation.
    if matches!(process::charge_scope(), ChargeScope::Closed) {
        return OUT_OF_MEMORY;
    }
    let Some(process) = process::limited().filter(|_| !library.is_null() && bytes > 0) else {
        return ask(library);
    };
    if !put_into_all(process, bytes) {
        return OUT_OF_MEMORY;
    }
    let mut loaded: Opaque = core::ptr::null_mut();
    let status = ask(&raw mut loaded);
    if status != SUCCESS {
        take_out_of_all(process, None, bytes);
        return status;
    }
    let mut allocations = process.allocations.lock();
    allocations.loads.name_library(loaded as u64, bytes);
    // SAFETY: the caller passes a place for the library, as to the driver.
    unsafe { library.write(loaded) };
    status
}

#[expect(clippy::too_many_arguments, reason = "the driver's own signature")]
pub(crate) unsafe fn load_library(
    real: LoadLibrary,
    library: *mut Opaque,
    code: Opaque,
    options: Opaque,
    values: Opaque,
    count: u32,
    own_options: Opaque,
    own_values: Opaque,
    own_count: u32,
) -> Status {
    // SAFETY: the caller passes an image, as to the driver.
    let found = process::limited().and_then(|_| unsafe { image::at(code) });
    open_library(library, cost(found), |place| {
        // SAFETY: the arguments are the caller's, the place the caller's or a local variable.
        unsafe {
            real(
                place,
                code,
                options,
                values,
                count,
                own_options,
                own_values,
                own_count,
            )
        }
    })
}

#[expect(clippy::too_many_arguments, reason = "the driver's own signature")]
pub(crate) unsafe fn load_library_file(
    real: LoadLibraryFile,
    library: *mut Opaque,
    path: *const c_char,
    options: Opaque,
    values: Opaque,
    count: u32,
    own_options: Opaque,
    own_values: Opaque,
    own_count: u32,
) -> Status {
    // SAFETY: the caller passes a path, as to the driver.
    let found = process::limited().and_then(|_| unsafe { image::in_file(path) });
    open_library(library, cost(found), |place| {
        // SAFETY: as for `load_library`.
        unsafe {
            real(
                place,
                path,
                options,
                values,
                count,
                own_options,
                own_values,
                own_count,
            )
        }
    })
}

pub(crate) unsafe fn unload_library(real: Unload, library: Opaque) -> Status {
    // SAFETY: the library is the caller's own.
    let ask = || unsafe { real(library) };
    let Some(process) = process::limited() else {
        return ask();
    };
    launch_cache::forget();
    process
        .allocations
        .lock()
        .loads
        .forget_kernels(library as u64);
    let Some(bytes) = process
        .allocations
        .lock()
        .loads
        .take_library(library as u64)
    else {
        return ask();
    };
    let status = ask();
    match status {
        SUCCESS => take_out_of_all(process, None, bytes),
        _ => {
            let mut allocations = process.allocations.lock();
            allocations.loads.name_library(library as u64, bytes);
        }
    }
    status
}
