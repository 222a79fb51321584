//! Memory and events that processes share. A handle is passed by value, as in the driver.

use std::ffi::c_void;

use crate::driver::driver_functions;
use crate::entry::{entry_points, passed_on};

/// `cudaIpcMemHandle_t` and `cudaIpcEventHandle_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct RuntimeIpcHandle([u8; 64]);

driver_functions! {
    cuIpcOpenMemHandle(out: *mut *mut c_void, handle: RuntimeIpcHandle, flags: u32) => c"cuIpcOpenMemHandle" @ 11000;
    cuIpcOpenEventHandle(out: *mut *mut c_void, handle: RuntimeIpcHandle) => c"cuIpcOpenEventHandle" @ 4010;
}

entry_points! {
    context cudaIpcOpenMemHandle(out: *mut *mut c_void, handle: RuntimeIpcHandle, flags: u32) = cuIpcOpenMemHandle;
    context cudaIpcOpenEventHandle(out: *mut *mut c_void, handle: RuntimeIpcHandle) = cuIpcOpenEventHandle;
}

passed_on! {
    context cudaIpcGetMemHandle(out: *mut RuntimeIpcHandle, address: *mut c_void) => c"cuIpcGetMemHandle" @ 4010;
    context cudaIpcCloseMemHandle(address: *mut c_void) => c"cuIpcCloseMemHandle" @ 4010;
    context cudaIpcGetEventHandle(out: *mut RuntimeIpcHandle, event: *mut c_void) => c"cuIpcGetEventHandle" @ 4010;
}
