//! Device and host memory.

use std::ffi::c_void;

use crate::context;
use crate::default_stream::RuntimeStream;
use crate::driver::driver_functions;
use crate::entry::{entry_points, passed_on};
use crate::error::{CudartError, INVALID_VALUE, Outcome};

driver_functions! {
    cuMemAlloc(out: *mut *mut c_void, bytes: usize) => c"cuMemAlloc" @ 3020;
    cuMemFree(address: *mut c_void) => c"cuMemFree" @ 3020;
    cuMemAllocPitch(out: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize, element: u32) => c"cuMemAllocPitch" @ 3020;
    cuMemHostAlloc(out: *mut *mut c_void, bytes: usize, flags: u32) => c"cuMemHostAlloc" @ 2020;
    cuMemFreeHost(address: *mut c_void) => c"cuMemFreeHost" @ 2000;
    cuMemAllocManaged(out: *mut *mut c_void, bytes: usize, flags: u32) => c"cuMemAllocManaged" @ 6000;
    cuMemAllocAsync(out: *mut *mut c_void, bytes: usize, stream: RuntimeStream) => c"cuMemAllocAsync" @ 11020;
    cuPointerGetAttribute(out: *mut c_void, attribute: u32, address: *const c_void) => c"cuPointerGetAttribute" @ 4000;
}

entry_points! {
    context cudaMalloc(out: *mut *mut c_void, bytes: usize) = malloc;
    context cudaFree(address: *mut c_void) = free;
    context cudaMallocPitch(out: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize) = malloc_pitch;
    context cudaMallocHost(out: *mut *mut c_void, bytes: usize) = malloc_host;
    context cudaHostAlloc(out: *mut *mut c_void, bytes: usize, flags: u32) = host_alloc;
    context cudaFreeHost(address: *mut c_void) = free_host;
    context cudaMallocManaged(out: *mut *mut c_void, bytes: usize, flags: u32) = malloc_managed;
    context cudaMallocAsync | cudaMallocAsync_ptsz (out: *mut *mut c_void, bytes: usize, stream: RuntimeStream) = malloc_async;
    driver cudaPointerGetAttributes(out: *mut PointerAttributes, address: *const c_void) = pointer_attributes;
}

passed_on! {
    context cudaMemGetInfo(free: *mut usize, total: *mut usize) => c"cuMemGetInfo" @ 3020;
    context cudaFreeAsync | cudaFreeAsync_ptsz (address: *mut c_void, stream: RuntimeStream) => c"cuMemFreeAsync" @ 11020;
    context cudaHostGetDevicePointer(out: *mut *mut c_void, host: *mut c_void, flags: u32) => c"cuMemHostGetDevicePointer" @ 3020;
    context cudaHostGetFlags(flags: *mut u32, host: *mut c_void) => c"cuMemHostGetFlags" @ 2030;
    context cudaHostRegister(address: *mut c_void, bytes: usize, flags: u32) => c"cuMemHostRegister" @ 6050;
    context cudaHostUnregister(address: *mut c_void) => c"cuMemHostUnregister" @ 4000;
}

/// `cudaPointerAttributes`, with the fields that both major versions fill in.
#[derive(Debug)]
#[repr(C)]
struct PointerAttributes {
    kind: u32,
    device: i32,
    device_pointer: *mut c_void,
    host_pointer: *mut c_void,
}

/// Allocates memory. Zero bytes give a null pointer.
fn take(
    out: *mut *mut c_void,
    bytes: usize,
    ask: impl FnOnce(*mut *mut c_void) -> Outcome,
) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    if bytes == 0 {
        // SAFETY: the program gave a valid pointer for the address.
        unsafe { out.write(std::ptr::null_mut()) };
        return Ok(());
    }
    ask(out)
}

fn malloc(out: *mut *mut c_void, bytes: usize) -> Outcome {
    take(out, bytes, |out| cuMemAlloc(out, bytes))
}

/// Frees memory. Programs free a null pointer to create a context.
fn free(address: *mut c_void) -> Outcome {
    if address.is_null() {
        return Ok(());
    }
    cuMemFree(address)
}

/// The runtime does not know the element size, so the pitch is that for the largest elements.
pub(crate) fn malloc_pitch(
    out: *mut *mut c_void,
    pitch: *mut usize,
    width: usize,
    height: usize,
) -> Outcome {
    if pitch.is_null() {
        return Err(INVALID_VALUE);
    }
    take(out, width.saturating_mul(height), |out| {
        cuMemAllocPitch(out, pitch, width, height, 16)
    })
}

fn malloc_host(out: *mut *mut c_void, bytes: usize) -> Outcome {
    host_alloc(out, bytes, 0)
}

fn host_alloc(out: *mut *mut c_void, bytes: usize, flags: u32) -> Outcome {
    take(out, bytes, |out| cuMemHostAlloc(out, bytes, flags))
}

fn free_host(address: *mut c_void) -> Outcome {
    if address.is_null() {
        return Ok(());
    }
    cuMemFreeHost(address)
}

/// Managed memory of zero bytes is an error, unlike device memory.
fn malloc_managed(out: *mut *mut c_void, bytes: usize, flags: u32) -> Outcome {
    if out.is_null() || bytes == 0 {
        return Err(INVALID_VALUE);
    }
    cuMemAllocManaged(out, bytes, flags)
}

fn malloc_async(out: *mut *mut c_void, bytes: usize, stream: RuntimeStream) -> Outcome {
    take(out, bytes, |out| cuMemAllocAsync(out, bytes, stream))
}

/// `CU_POINTER_ATTRIBUTE_*`.
const MEMORY_TYPE: u32 = 2;
const DEVICE_POINTER: u32 = 3;
const HOST_POINTER: u32 = 4;
const IS_MANAGED: u32 = 8;
const DEVICE_ORDINAL: u32 = 9;

/// `cudaMemoryType*`. Host and device memory have the driver's values.
const UNREGISTERED: u32 = 0;
const MANAGED: u32 = 3;
/// The device of memory without one: `cudaCpuDeviceId` less one.
const NO_DEVICE: i32 = -2;

/// Memory that the driver does not know is host memory.
fn pointer_attributes(out: *mut PointerAttributes, address: *const c_void) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let attributes = known_attributes(address).unwrap_or(PointerAttributes {
        kind: UNREGISTERED,
        device: NO_DEVICE,
        device_pointer: std::ptr::null_mut(),
        host_pointer: address.cast_mut(),
    });
    // SAFETY: the program gave a valid pointer for the attributes.
    unsafe { out.write(attributes) };
    Ok(())
}

fn known_attributes(address: *const c_void) -> Result<PointerAttributes, CudartError> {
    if context::current()?.is_null() {
        return Err(INVALID_VALUE);
    }
    let mut kind = 0_u32;
    cuPointerGetAttribute((&raw mut kind).cast(), MEMORY_TYPE, address)?;
    let mut is_managed = 0_u32;
    let asked = cuPointerGetAttribute((&raw mut is_managed).cast(), IS_MANAGED, address);
    if asked.is_ok() && is_managed & 1 == 1 {
        kind = MANAGED;
    }
    let mut device = 0_i32;
    cuPointerGetAttribute((&raw mut device).cast(), DEVICE_ORDINAL, address)?;
    let pointer = |attribute| {
        let mut found: *mut c_void = std::ptr::null_mut();
        let asked = cuPointerGetAttribute((&raw mut found).cast(), attribute, address);
        asked.map_or(std::ptr::null_mut(), |()| found)
    };
    Ok(PointerAttributes {
        kind,
        device,
        device_pointer: pointer(DEVICE_POINTER),
        host_pointer: pointer(HOST_POINTER),
    })
}
