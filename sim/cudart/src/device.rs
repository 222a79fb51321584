//! Devices: their number, the thread's device, and their capabilities.

use std::ffi::{c_char, c_void};

use crate::context;
use crate::driver::{self, driver_functions};
use crate::entry::{entry_points, passed_on};
use crate::error::{CudartError, INVALID_DEVICE, INVALID_VALUE, Outcome};

driver_functions! {
    cuDriverGetVersion(version: *mut i32) => c"cuDriverGetVersion" @ 2020;
    cuCtxEnablePeerAccess(peer: *mut c_void, flags: u32) => c"cuCtxEnablePeerAccess" @ 4000;
    cuCtxDisablePeerAccess(peer: *mut c_void) => c"cuCtxDisablePeerAccess" @ 4000;
}

entry_points! {
    driver cudaGetDeviceCount(count: *mut i32) = driver::cuDeviceGetCount;
    driver cudaGetDevice(device: *mut i32) = get_device;
    driver cudaSetDevice(device: i32) = context::choose;
    driver cudaInitDevice(device: i32, device_flags: u32, flags: u32) = init_device;
    driver cudaSetValidDevices(devices: *mut i32, count: i32) = set_valid_devices;
    driver cudaDeviceReset() = context::reset;
    nothing cudaDriverGetVersion(version: *mut i32) = driver_version;
    nothing cudaRuntimeGetVersion_12(version: *mut i32) = runtime_version_12;
    nothing cudaRuntimeGetVersion_13(version: *mut i32) = runtime_version_13;
    driver cudaSetDeviceFlags(flags: u32) = set_flags;
    driver cudaGetDeviceFlags(flags: *mut u32) = get_flags;
    context cudaDeviceEnablePeerAccess(peer: i32, flags: u32) = enable_peer;
    context cudaDeviceDisablePeerAccess(peer: i32) = disable_peer;
    driver cudaChooseDevice(device: *mut i32, wish: *const c_void) = choose_any;
}

passed_on! {
    driver cudaDeviceGetAttribute(value: *mut i32, attribute: u32, device: i32) => c"cuDeviceGetAttribute" @ 2000;
    driver cudaDeviceGetPCIBusId(text: *mut c_char, room: i32, device: i32) => c"cuDeviceGetPCIBusId" @ 4010;
    driver cudaDeviceGetByPCIBusId(device: *mut i32, text: *const c_char) => c"cuDeviceGetByPCIBusId" @ 4010;
    driver cudaDeviceCanAccessPeer(out: *mut i32, device: i32, peer: i32) => c"cuDeviceCanAccessPeer" @ 4000;
    driver cudaDeviceGetP2PAttribute(out: *mut i32, attribute: u32, from: i32, to: i32) => c"cuDeviceGetP2PAttribute" @ 8000;
    context cudaDeviceSynchronize() => c"cuCtxSynchronize" @ 2000;
    context cudaDeviceSetLimit(limit: u32, value: usize) => c"cuCtxSetLimit" @ 3010;
    context cudaDeviceGetLimit(value: *mut usize, limit: u32) => c"cuCtxGetLimit" @ 3010;
    context cudaDeviceGetCacheConfig(config: *mut u32) => c"cuCtxGetCacheConfig" @ 3020;
    context cudaDeviceSetCacheConfig(config: u32) => c"cuCtxSetCacheConfig" @ 3020;
    context cudaDeviceGetSharedMemConfig(config: *mut u32) => c"cuCtxGetSharedMemConfig" @ 4020;
    context cudaDeviceSetSharedMemConfig(config: u32) => c"cuCtxSetSharedMemConfig" @ 4020;
    context cudaDeviceGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) => c"cuCtxGetStreamPriorityRange" @ 5050;
    context cudaDeviceFlushGPUDirectRDMAWrites(target: u32, scope: u32) => c"cuFlushGPUDirectRDMAWrites" @ 11030;
    context cudaProfilerStart() => c"cuProfilerStart" @ 4000;
    context cudaProfilerStop() => c"cuProfilerStop" @ 4000;
    context cudaThreadSynchronize() => c"cuCtxSynchronize" @ 2000;
}

/// Writes a value through the program's pointer.
fn put<T>(out: *mut T, value: T) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the program gave a valid pointer for the value.
    unsafe { out.write(value) };
    Ok(())
}

fn get_device(out: *mut i32) -> Outcome {
    put(out, context::device()?)
}

/// The flags control only how a thread waits, so they are ignored.
fn init_device(device: i32, _device_flags: u32, _flags: u32) -> Outcome {
    context::check_device(device)?;
    context::retained(device).map(drop)
}

/// Sets the order of devices for threads that choose none. Here such a thread uses the first device.
fn set_valid_devices(devices: *mut i32, count: i32) -> Outcome {
    if devices.is_null() && count > 0 {
        return Err(INVALID_VALUE);
    }
    Ok(())
}

/// Programs ask for the version to find out whether there is a driver at all.
fn driver_version(out: *mut i32) -> Outcome {
    let mut version = 0;
    let asked = cuDriverGetVersion(&raw mut version);
    put(out, if asked.is_ok() { version } else { 0 })
}

fn runtime_version_12(out: *mut i32) -> Outcome {
    put(out, 12090)
}

fn runtime_version_13(out: *mut i32) -> Outcome {
    put(out, 13020)
}

/// `cudaDeviceMapHost`. It is always on and has the same value as the driver's flag.
const MAP_HOST: u32 = 8;

fn set_flags(flags: u32) -> Outcome {
    driver::cuDevicePrimaryCtxSetFlags(context::device()?, flags & !MAP_HOST)
}

fn get_flags(out: *mut u32) -> Outcome {
    let (mut flags, mut active) = (0, 0);
    let device = context::device()?;
    driver::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active)?;
    put(out, flags | MAP_HOST)
}

fn enable_peer(peer: i32, flags: u32) -> Outcome {
    cuCtxEnablePeerAccess(other(peer)?, flags)
}

fn disable_peer(peer: i32) -> Outcome {
    cuCtxDisablePeerAccess(other(peer)?)
}

/// The context of a peer device. It must not be the thread's device.
fn other(peer: i32) -> Result<*mut c_void, CudartError> {
    context::check_device(peer)?;
    if peer == context::device()? {
        return Err(INVALID_DEVICE);
    }
    let current = context::current()?;
    let handle = context::retained(peer)?;
    driver::cuCtxSetCurrent(current)?;
    Ok(handle)
}

/// Any device fits any wish.
fn choose_any(out: *mut i32, wish: *const c_void) -> Outcome {
    if wish.is_null() {
        return Err(INVALID_VALUE);
    }
    put(out, 0)
}
