//! Events.

use std::ffi::c_void;

use crate::default_stream::RuntimeStream;
use crate::driver::driver_functions;
use crate::entry::{entry_points, passed_on};
use crate::error::Outcome;

driver_functions! {
    cuEventCreate(out: *mut *mut c_void, flags: u32) => c"cuEventCreate" @ 2000;
}

entry_points! {
    context cudaEventCreate(out: *mut *mut c_void) = create;
}

passed_on! {
    context cudaEventCreateWithFlags(out: *mut *mut c_void, flags: u32) => c"cuEventCreate" @ 2000;
    context cudaEventDestroy(event: *mut c_void) => c"cuEventDestroy" @ 4000;
    context cudaEventQuery(event: *mut c_void) => c"cuEventQuery" @ 2000;
    context cudaEventSynchronize(event: *mut c_void) => c"cuEventSynchronize" @ 2000;
    context cudaEventElapsedTime(out: *mut f32, start: *mut c_void, end: *mut c_void) => c"cuEventElapsedTime" @ 2000;
    context cudaEventRecord | cudaEventRecord_ptsz (event: *mut c_void, stream: RuntimeStream) => c"cuEventRecord" @ 2000;
    context cudaEventRecordWithFlags | cudaEventRecordWithFlags_ptsz (event: *mut c_void, stream: RuntimeStream, flags: u32) => c"cuEventRecordWithFlags" @ 11010;
}

fn create(out: *mut *mut c_void) -> Outcome {
    cuEventCreate(out, 0)
}
