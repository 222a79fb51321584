//! Code that a program loads itself. Libraries and kernels of the runtime are those of the driver.

use std::ffi::{c_char, c_void};

use crate::entry::passed_on;

passed_on! {
    driver cudaLibraryLoadData(out: *mut *mut c_void, code: *const c_void, options: *mut c_void, values: *mut c_void, count: u32, own_options: *mut c_void, own_values: *mut c_void, own_count: u32) => c"cuLibraryLoadData" @ 12000;
    driver cudaLibraryLoadFromFile(out: *mut *mut c_void, path: *const c_char, options: *mut c_void, values: *mut c_void, count: u32, own_options: *mut c_void, own_values: *mut c_void, own_count: u32) => c"cuLibraryLoadFromFile" @ 12000;
    driver cudaLibraryUnload(library: *mut c_void) => c"cuLibraryUnload" @ 12000;
    context cudaLibraryGetKernel(out: *mut *mut c_void, library: *mut c_void, name: *const c_char) => c"cuLibraryGetKernel" @ 12000;
    context cudaLibraryGetGlobal(address: *mut *mut c_void, bytes: *mut usize, library: *mut c_void, name: *const c_char) => c"cuLibraryGetGlobal" @ 12000;
    context cudaLibraryGetManaged(address: *mut *mut c_void, bytes: *mut usize, library: *mut c_void, name: *const c_char) => c"cuLibraryGetManaged" @ 12000;
    context cudaLibraryGetUnifiedFunction(out: *mut *mut c_void, library: *mut c_void, name: *const c_char) => c"cuLibraryGetUnifiedFunction" @ 12000;
    context cudaLibraryGetKernelCount(count: *mut u32, library: *mut c_void) => c"cuLibraryGetKernelCount" @ 12040;
    context cudaLibraryEnumerateKernels(kernels: *mut *mut c_void, room: u32, library: *mut c_void) => c"cuLibraryEnumerateKernels" @ 12040;
}
