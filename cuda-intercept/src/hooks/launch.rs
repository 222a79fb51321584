//! Launches of every kind. Each one first goes through [`local_memory`](super::local_memory).
//!
//! A kernel without a context (`CUkernel`) is launched like a function, but its attributes come from another query.
//! So the handles of such kernels are remembered.

use core::ffi::c_char;

use crate::foreign::{LaunchConfig, LaunchParams, Opaque, SUCCESS, Status, Stream};
use crate::{driver, process};

use super::local_memory::after;

type Kernel = unsafe extern "C" fn(
    Opaque,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    Stream,
    Opaque,
    Opaque,
) -> Status;
type Cooperative =
    unsafe extern "C" fn(Opaque, u32, u32, u32, u32, u32, u32, u32, Stream, Opaque) -> Status;
type Configured = unsafe extern "C" fn(*const LaunchConfig, Opaque, Opaque, Opaque) -> Status;
type OnMany = unsafe extern "C" fn(*const LaunchParams, u32, u32) -> Status;
type Once = unsafe extern "C" fn(Opaque) -> Status;
type Grid = unsafe extern "C" fn(Opaque, i32, i32) -> Status;
type GridAsync = unsafe extern "C" fn(Opaque, i32, i32, Stream) -> Status;
type GetKernel = unsafe extern "C" fn(*mut Opaque, Opaque, *const c_char) -> Status;
type Enumerate = unsafe extern "C" fn(*mut Opaque, u32, Opaque) -> Status;

#[expect(clippy::too_many_arguments, reason = "the driver's own signature")]
#[inline]
pub(crate) unsafe fn kernel(
    real: Kernel,
    function: Opaque,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: Stream,
    arguments: Opaque,
    extra: Opaque,
) -> Status {
    after(function, stream, || {
        // SAFETY: the arguments are the caller's own.
        unsafe {
            real(
                function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
                arguments, extra,
            )
        }
    })
}

#[expect(clippy::too_many_arguments, reason = "the driver's own signature")]
pub(crate) unsafe fn cooperative(
    real: Cooperative,
    function: Opaque,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: Stream,
    arguments: Opaque,
) -> Status {
    after(function, stream, || {
        // SAFETY: the arguments are the caller's own.
        unsafe {
            real(
                function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
                arguments,
            )
        }
    })
}

pub(crate) unsafe fn configured(
    real: Configured,
    config: *const LaunchConfig,
    function: Opaque,
    arguments: Opaque,
    extra: Opaque,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let ask = || unsafe { real(config, function, arguments, extra) };
    // SAFETY: the caller passes null or a configuration, as to the driver.
    match unsafe { config.as_ref() } {
        Some(config) => after(function, config.stream, ask),
        None => ask(),
    }
}

/// Prepares the launches one after the other. The last one launches all.
fn on_each(launches: &[LaunchParams], ask: &dyn Fn() -> Status) -> Status {
    match launches.split_first() {
        Some((first, rest)) => after(first.function, first.stream, || on_each(rest, ask)),
        None => ask(),
    }
}

pub(crate) unsafe fn on_many(
    real: OnMany,
    launches: *const LaunchParams,
    count: u32,
    flags: u32,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let ask = || unsafe { real(launches, count, flags) };
    // A cooperative launch has at most one launch for each card, or the driver refuses it.
    if launches.is_null() || driver::devices().is_none_or(|devices| count > devices) {
        return ask();
    }
    // SAFETY: the caller passes this many launches, as to the driver.
    let all = unsafe { core::slice::from_raw_parts(launches, count as usize) };
    on_each(all, &ask)
}

pub(crate) unsafe fn once(real: Once, function: Opaque) -> Status {
    // SAFETY: the function is the caller's own.
    after(function, core::ptr::null_mut(), || unsafe {
        real(function)
    })
}

pub(crate) unsafe fn grid(real: Grid, function: Opaque, width: i32, height: i32) -> Status {
    // SAFETY: the arguments are the caller's own.
    after(function, core::ptr::null_mut(), || unsafe {
        real(function, width, height)
    })
}

pub(crate) unsafe fn grid_async(
    real: GridAsync,
    function: Opaque,
    width: i32,
    height: i32,
    stream: Stream,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    after(function, stream, || unsafe {
        real(function, width, height, stream)
    })
}

pub(crate) unsafe fn get_kernel(
    real: GetKernel,
    kernel: *mut Opaque,
    library: Opaque,
    name: *const c_char,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(kernel, library, name) };
    if status == SUCCESS {
        // SAFETY: the driver accepted the place and wrote the kernel.
        unsafe { keep(library, kernel, 1) };
    }
    status
}

pub(crate) unsafe fn enumerate(
    real: Enumerate,
    kernels: *mut Opaque,
    count: u32,
    library: Opaque,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(kernels, count, library) };
    if status == SUCCESS {
        let written = driver::kernels_in(library).unwrap_or(0).min(count);
        // SAFETY: the driver wrote as many as there are, and as fit.
        unsafe { keep(library, kernels, written as usize) };
    }
    status
}

/// Remembers the handles of kernels.
///
/// # Safety
/// `kernels` must be null or point to `count` handles.
unsafe fn keep(library: Opaque, kernels: *const Opaque, count: usize) {
    let Some(process) = process::limited().filter(|_| !kernels.is_null()) else {
        return;
    };
    // SAFETY: as the caller guarantees.
    let kernels = unsafe { core::slice::from_raw_parts(kernels, count) };
    let mut allocations = process.allocations.lock();
    for kernel in kernels.iter().filter(|kernel| !kernel.is_null()) {
        allocations
            .loads
            .name_kernel(*kernel as u64, library as u64);
    }
}
