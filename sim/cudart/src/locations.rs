//! Locations of managed memory. In CUDA 12 the older functions take a device and the newer ones a location. CUDA 13 has
//! only the newer ones, under the older names.

use std::ffi::c_void;

use crate::default_stream::RuntimeStream;
use crate::entry::passed_on;

/// `cudaMemLocation`, which is passed by value: the type in the low half, a device or node in the high half.
type Location = u64;

passed_on! {
    context cudaMemPrefetchAsync_to_device | cudaMemPrefetchAsync_to_device_ptsz (address: *const c_void, bytes: usize, device: i32, stream: RuntimeStream) => c"cuMemPrefetchAsync" @ 8000;
    context cudaMemPrefetchAsync_to_place | cudaMemPrefetchAsync_to_place_ptsz (address: *const c_void, bytes: usize, location: Location, flags: u32, stream: RuntimeStream) => c"cuMemPrefetchAsync" @ 12020;
    context cudaMemAdvise_for_device(address: *const c_void, bytes: usize, advice: u32, device: i32) => c"cuMemAdvise" @ 8000;
    context cudaMemAdvise_for_place(address: *const c_void, bytes: usize, advice: u32, location: Location) => c"cuMemAdvise" @ 12020;
    context cudaMemRangeGetAttribute(out: *mut c_void, size: usize, attribute: u32, address: *const c_void, bytes: usize) => c"cuMemRangeGetAttribute" @ 8000;
    context cudaMemRangeGetAttributes(out: *mut *mut c_void, sizes: *mut usize, attributes: *mut u32, count: usize, address: *const c_void, bytes: usize) => c"cuMemRangeGetAttributes" @ 8000;
    driver cudaMemGetDefaultMemPool(out: *mut *mut c_void, location: *mut Location, kind: u32) => c"cuMemGetDefaultMemPool" @ 13000;
    driver cudaMemGetMemPool(out: *mut *mut c_void, location: *mut Location, kind: u32) => c"cuMemGetMemPool" @ 13000;
    driver cudaMemSetMemPool(location: *mut Location, kind: u32, pool: *mut c_void) => c"cuMemSetMemPool" @ 13000;
}
