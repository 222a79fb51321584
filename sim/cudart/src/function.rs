//! Queries about kernels: attributes, occupancy, name and parameters.

use std::ffi::{c_char, c_void};

use crate::code;
use crate::driver::driver_functions;
use crate::entry::entry_points;
use crate::error::{CudartError, INVALID_VALUE, Outcome};
use crate::launch::{DriverLaunchConfig, RuntimeLaunchConfig, configuration};

driver_functions! {
    cuKernelGetFunction(out: *mut *mut c_void, kernel: *mut c_void) => c"cuKernelGetFunction" @ 12000;
    cuFuncGetAttribute(value: *mut i32, attribute: u32, function: *mut c_void) => c"cuFuncGetAttribute" @ 2020;
    cuFuncSetAttribute(function: *mut c_void, attribute: u32, value: i32) => c"cuFuncSetAttribute" @ 9000;
    cuFuncSetCacheConfig(function: *mut c_void, config: u32) => c"cuFuncSetCacheConfig" @ 3000;
    cuFuncGetName(out: *mut *const c_char, function: *mut c_void) => c"cuFuncGetName" @ 12030;
    cuFuncGetParamInfo(function: *mut c_void, index: usize, offset: *mut usize, bytes: *mut usize) => c"cuFuncGetParamInfo" @ 12040;
    cuFuncGetParamCount(function: *mut c_void, count: *mut usize) => c"cuFuncGetParamCount" @ 13020;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: *mut i32, function: *mut c_void, threads: i32, shared_bytes: usize, flags: u32) => c"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" @ 7000;
    cuOccupancyAvailableDynamicSMemPerBlock(bytes: *mut usize, function: *mut c_void, blocks: i32, threads: i32) => c"cuOccupancyAvailableDynamicSMemPerBlock" @ 10020;
    cuOccupancyMaxPotentialClusterSize(size: *mut i32, function: *mut c_void, configuration: *const DriverLaunchConfig) => c"cuOccupancyMaxPotentialClusterSize" @ 11070;
    cuOccupancyMaxActiveClusters(count: *mut i32, function: *mut c_void, configuration: *const DriverLaunchConfig) => c"cuOccupancyMaxActiveClusters" @ 11070;
    cuKernelSetAttribute(attribute: u32, value: i32, kernel: *mut c_void, device: i32) => c"cuKernelSetAttribute" @ 12000;
}

entry_points! {
    context cudaFuncGetAttributes(out: *mut FuncAttributes, function: *const c_void) = get_attributes;
    context cudaFuncSetAttribute(function: *const c_void, attribute: u32, value: i32) = set_attribute;
    context cudaFuncSetCacheConfig(function: *const c_void, config: u32) = set_cache_config;
    context cudaFuncSetSharedMemConfig(function: *const c_void, config: u32) = set_shared_config;
    context cudaFuncGetName(out: *mut *const c_char, function: *const c_void) = get_name;
    context cudaFuncGetParamInfo(function: *const c_void, index: usize, offset: *mut usize, bytes: *mut usize) = get_parameter;
    context cudaFuncGetParamCount(function: *const c_void, count: *mut usize) = count_parameters;
    context cudaGetFuncBySymbol(out: *mut *mut c_void, function: *const c_void) = function_by_symbol;
    context cudaGetKernel(out: *mut *mut c_void, function: *const c_void) = kernel_by_symbol;
    context __cudaGetKernel(out: *mut *mut c_void, function: *const c_void) = kernel_by_symbol;
    context cudaKernelSetAttributeForDevice(kernel: *const c_void, attribute: u32, value: i32, device: i32) = set_kernel_attribute;
    context cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut i32, function: *const c_void, threads: i32, shared_bytes: usize) = occupancy;
    context cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: *mut i32, function: *const c_void, threads: i32, shared_bytes: usize, flags: u32) = occupancy_with_flags;
    context cudaOccupancyAvailableDynamicSMemPerBlock(bytes: *mut usize, function: *const c_void, blocks: i32, threads: i32) = shared_memory_left;
    context cudaOccupancyMaxPotentialClusterSize(size: *mut i32, function: *const c_void, configuration: *const RuntimeLaunchConfig) = cluster_size;
    context cudaOccupancyMaxActiveClusters(count: *mut i32, function: *const c_void, configuration: *const RuntimeLaunchConfig) = clusters;
}

/// The number of fields after the three sizes, including reserved ones.
const NUMBERS: usize = 29;
/// The driver's attribute for each field that both major versions fill in, in the structure's order.
const IN_ORDER: [u32; 13] = [0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 14];

/// `cudaFuncAttributes`: shared, constant and local bytes, then the other fields.
#[derive(Debug)]
#[repr(C)]
struct FuncAttributes {
    sizes: [usize; 3],
    numbers: [i32; NUMBERS],
}

/// The driver function in the current context.
fn function(function: *const c_void) -> Result<*mut c_void, CudartError> {
    let kernel = code::kernel(function)?;
    let mut found = std::ptr::null_mut();
    match cuKernelGetFunction(&raw mut found, kernel) {
        Ok(()) => Ok(found),
        // It already is a driver function, not a kernel.
        Err(_) => Ok(kernel),
    }
}

/// An attribute that the driver does not know stays zero.
fn get_attributes(out: *mut FuncAttributes, symbol: *const c_void) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let function = function(symbol)?;
    let ask = |attribute: u32| {
        let mut value = 0;
        cuFuncGetAttribute(&raw mut value, attribute, function).map(|()| value)
    };
    let size = |attribute| ask(attribute).map(|bytes| usize::try_from(bytes).unwrap_or(0));
    let mut attributes = FuncAttributes {
        sizes: [size(1)?, size(2)?, size(3)?],
        numbers: [0; NUMBERS],
    };
    for (number, attribute) in attributes.numbers.iter_mut().zip(IN_ORDER) {
        *number = ask(attribute).unwrap_or(0);
    }
    // SAFETY: the program gave a valid pointer for the attributes.
    unsafe { out.write(attributes) };
    Ok(())
}

fn set_attribute(symbol: *const c_void, attribute: u32, value: i32) -> Outcome {
    cuFuncSetAttribute(function(symbol)?, attribute, value)
}

fn set_cache_config(symbol: *const c_void, config: u32) -> Outcome {
    cuFuncSetCacheConfig(function(symbol)?, config)
}

/// Current cards have only one configuration, so the wish is ignored.
fn set_shared_config(symbol: *const c_void, _config: u32) -> Outcome {
    function(symbol).map(drop)
}

fn get_name(out: *mut *const c_char, symbol: *const c_void) -> Outcome {
    cuFuncGetName(out, function(symbol)?)
}

fn get_parameter(
    symbol: *const c_void,
    index: usize,
    offset: *mut usize,
    bytes: *mut usize,
) -> Outcome {
    cuFuncGetParamInfo(function(symbol)?, index, offset, bytes)
}

fn count_parameters(symbol: *const c_void, count: *mut usize) -> Outcome {
    cuFuncGetParamCount(function(symbol)?, count)
}

fn give(out: *mut *mut c_void, handle: *mut c_void) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the program gave a valid pointer for the handle.
    unsafe { out.write(handle) };
    Ok(())
}

fn function_by_symbol(out: *mut *mut c_void, symbol: *const c_void) -> Outcome {
    give(out, function(symbol)?)
}

fn kernel_by_symbol(out: *mut *mut c_void, symbol: *const c_void) -> Outcome {
    give(out, code::kernel(symbol)?)
}

fn set_kernel_attribute(kernel: *const c_void, attribute: u32, value: i32, device: i32) -> Outcome {
    cuKernelSetAttribute(attribute, value, code::kernel(kernel)?, device)
}

fn occupancy(blocks: *mut i32, symbol: *const c_void, threads: i32, shared: usize) -> Outcome {
    occupancy_with_flags(blocks, symbol, threads, shared, 0)
}

fn occupancy_with_flags(
    blocks: *mut i32,
    symbol: *const c_void,
    threads: i32,
    shared: usize,
    flags: u32,
) -> Outcome {
    let function = function(symbol)?;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, flags)
}

fn shared_memory_left(
    bytes: *mut usize,
    symbol: *const c_void,
    blocks: i32,
    threads: i32,
) -> Outcome {
    cuOccupancyAvailableDynamicSMemPerBlock(bytes, function(symbol)?, blocks, threads)
}

fn cluster_size(
    size: *mut i32,
    symbol: *const c_void,
    given: *const RuntimeLaunchConfig,
) -> Outcome {
    let given = configuration(given)?;
    cuOccupancyMaxPotentialClusterSize(size, function(symbol)?, &raw const given)
}

fn clusters(count: *mut i32, symbol: *const c_void, given: *const RuntimeLaunchConfig) -> Outcome {
    let given = configuration(given)?;
    cuOccupancyMaxActiveClusters(count, function(symbol)?, &raw const given)
}
