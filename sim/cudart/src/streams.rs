//! Streams and their capture.

use std::ffi::c_void;

use crate::default_stream::RuntimeStream;
use crate::driver::driver_functions;
use crate::entry::{entry_points, passed_on};
use crate::error::Outcome;

driver_functions! {
    cuStreamCreate(out: *mut RuntimeStream, flags: u32) => c"cuStreamCreate" @ 2000;
}

entry_points! {
    context cudaStreamCreate(out: *mut RuntimeStream) = create;
}

passed_on! {
    context cudaStreamCreateWithFlags(out: *mut RuntimeStream, flags: u32) => c"cuStreamCreate" @ 2000;
    context cudaStreamCreateWithPriority(out: *mut RuntimeStream, flags: u32, priority: i32) => c"cuStreamCreateWithPriority" @ 5050;
    context cudaStreamDestroy(stream: RuntimeStream) => c"cuStreamDestroy" @ 4000;
    context cudaStreamGetPriority | cudaStreamGetPriority_ptsz (stream: RuntimeStream, priority: *mut i32) => c"cuStreamGetPriority" @ 5050;
    context cudaStreamGetFlags | cudaStreamGetFlags_ptsz (stream: RuntimeStream, flags: *mut u32) => c"cuStreamGetFlags" @ 5050;
    context cudaStreamGetId | cudaStreamGetId_ptsz (stream: RuntimeStream, id: *mut u64) => c"cuStreamGetId" @ 12000;
    context cudaStreamGetDevice | cudaStreamGetDevice_ptsz (stream: RuntimeStream, device: *mut i32) => c"cuStreamGetDevice" @ 12080;
    context cudaStreamCopyAttributes | cudaStreamCopyAttributes_ptsz (to: RuntimeStream, from: RuntimeStream) => c"cuStreamCopyAttributes" @ 11000;
    context cudaStreamGetAttribute | cudaStreamGetAttribute_ptsz (stream: RuntimeStream, attribute: u32, value: *mut c_void) => c"cuStreamGetAttribute" @ 11000;
    context cudaStreamSetAttribute | cudaStreamSetAttribute_ptsz (stream: RuntimeStream, attribute: u32, value: *const c_void) => c"cuStreamSetAttribute" @ 11000;
    context cudaStreamWaitEvent | cudaStreamWaitEvent_ptsz (stream: RuntimeStream, event: *mut c_void, flags: u32) => c"cuStreamWaitEvent" @ 3020;
    context cudaStreamSynchronize | cudaStreamSynchronize_ptsz (stream: RuntimeStream) => c"cuStreamSynchronize" @ 2000;
    context cudaStreamQuery | cudaStreamQuery_ptsz (stream: RuntimeStream) => c"cuStreamQuery" @ 2000;
    context cudaStreamAttachMemAsync | cudaStreamAttachMemAsync_ptsz (stream: RuntimeStream, address: *mut c_void, bytes: usize, flags: u32) => c"cuStreamAttachMemAsync" @ 6000;
    context cudaStreamAddCallback | cudaStreamAddCallback_ptsz (stream: RuntimeStream, callback: *mut c_void, data: *mut c_void, flags: u32) => c"cuStreamAddCallback" @ 5000;
    context cudaLaunchHostFunc | cudaLaunchHostFunc_ptsz (stream: RuntimeStream, function: *mut c_void, data: *mut c_void) => c"cuLaunchHostFunc" @ 10000;
    context cudaStreamBeginCapture | cudaStreamBeginCapture_ptsz (stream: RuntimeStream, mode: u32) => c"cuStreamBeginCapture" @ 10010;
    context cudaStreamBeginCaptureToGraph | cudaStreamBeginCaptureToGraph_ptsz (stream: RuntimeStream, graph: *mut c_void, dependencies: *const c_void, edges: *const c_void, count: usize, mode: u32) => c"cuStreamBeginCaptureToGraph" @ 12030;
    context cudaStreamEndCapture | cudaStreamEndCapture_ptsz (stream: RuntimeStream, graph: *mut *mut c_void) => c"cuStreamEndCapture" @ 10000;
    context cudaStreamIsCapturing | cudaStreamIsCapturing_ptsz (stream: RuntimeStream, status: *mut u32) => c"cuStreamIsCapturing" @ 10000;
    context cudaStreamGetCaptureInfo_of_id | cudaStreamGetCaptureInfo_of_id_ptsz (stream: RuntimeStream, status: *mut u32, id: *mut u64) => c"cuStreamGetCaptureInfo" @ 10010;
    context cudaStreamGetCaptureInfo_of_graph | cudaStreamGetCaptureInfo_of_graph_ptsz (stream: RuntimeStream, status: *mut u32, id: *mut u64, graph: *mut *mut c_void, dependencies: *mut *mut c_void, count: *mut usize) => c"cuStreamGetCaptureInfo" @ 11030;
    context cudaStreamGetCaptureInfo_of_edges | cudaStreamGetCaptureInfo_of_edges_ptsz (stream: RuntimeStream, status: *mut u32, id: *mut u64, graph: *mut *mut c_void, dependencies: *mut *mut c_void, edges: *mut *mut c_void, count: *mut usize) => c"cuStreamGetCaptureInfo" @ 12030;
    context cudaStreamUpdateCaptureDependencies_plain | cudaStreamUpdateCaptureDependencies_plain_ptsz (stream: RuntimeStream, dependencies: *mut c_void, count: usize, flags: u32) => c"cuStreamUpdateCaptureDependencies" @ 11030;
    context cudaStreamUpdateCaptureDependencies_of_edges | cudaStreamUpdateCaptureDependencies_of_edges_ptsz (stream: RuntimeStream, dependencies: *mut c_void, edges: *const c_void, count: usize, flags: u32) => c"cuStreamUpdateCaptureDependencies" @ 12030;
    driver cudaThreadExchangeStreamCaptureMode(mode: *mut u32) => c"cuThreadExchangeStreamCaptureMode" @ 10010;
    context cudaCtxResetPersistingL2Cache() => c"cuCtxResetPersistingL2Cache" @ 11000;
}

fn create(out: *mut RuntimeStream) -> Outcome {
    cuStreamCreate(out, 0)
}
