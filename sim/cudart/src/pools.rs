//! Memory pools. The runtime uses the driver's structures and attributes.

use std::ffi::c_void;

use crate::default_stream::RuntimeStream;
use crate::entry::passed_on;

passed_on! {
    context cudaMallocFromPoolAsync | cudaMallocFromPoolAsync_ptsz (out: *mut *mut c_void, bytes: usize, pool: *mut c_void, stream: RuntimeStream) => c"cuMemAllocFromPoolAsync" @ 11020;
    driver cudaMemPoolCreate(out: *mut *mut c_void, properties: *const c_void) => c"cuMemPoolCreate" @ 11020;
    driver cudaMemPoolDestroy(pool: *mut c_void) => c"cuMemPoolDestroy" @ 11020;
    driver cudaMemPoolTrimTo(pool: *mut c_void, keep: usize) => c"cuMemPoolTrimTo" @ 11020;
    driver cudaMemPoolSetAttribute(pool: *mut c_void, attribute: u32, value: *mut c_void) => c"cuMemPoolSetAttribute" @ 11020;
    driver cudaMemPoolGetAttribute(pool: *mut c_void, attribute: u32, value: *mut c_void) => c"cuMemPoolGetAttribute" @ 11020;
    driver cudaMemPoolSetAccess(pool: *mut c_void, access: *const c_void, count: usize) => c"cuMemPoolSetAccess" @ 11020;
    driver cudaMemPoolGetAccess(flags: *mut u32, pool: *mut c_void, location: *mut c_void) => c"cuMemPoolGetAccess" @ 11020;
    driver cudaMemPoolExportToShareableHandle(out: *mut c_void, pool: *mut c_void, kind: u32, flags: u32) => c"cuMemPoolExportToShareableHandle" @ 11020;
    driver cudaMemPoolImportFromShareableHandle(out: *mut *mut c_void, handle: *mut c_void, kind: u32, flags: u32) => c"cuMemPoolImportFromShareableHandle" @ 11020;
    driver cudaMemPoolExportPointer(out: *mut c_void, address: *mut c_void) => c"cuMemPoolExportPointer" @ 11020;
    driver cudaMemPoolImportPointer(out: *mut *mut c_void, pool: *mut c_void, exported: *mut c_void) => c"cuMemPoolImportPointer" @ 11020;
    driver cudaDeviceGetDefaultMemPool(out: *mut *mut c_void, device: i32) => c"cuDeviceGetDefaultMemPool" @ 11020;
    driver cudaDeviceGetMemPool(out: *mut *mut c_void, device: i32) => c"cuDeviceGetMemPool" @ 11020;
    driver cudaDeviceSetMemPool(device: i32, pool: *mut c_void) => c"cuDeviceSetMemPool" @ 11020;
    driver cudaDeviceGraphMemTrim(device: i32) => c"cuDeviceGraphMemTrim" @ 11040;
    driver cudaDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: *mut c_void) => c"cuDeviceGetGraphMemAttribute" @ 11040;
    driver cudaDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: *mut c_void) => c"cuDeviceSetGraphMemAttribute" @ 11040;
}
