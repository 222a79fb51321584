//! Copies and fills of a run of bytes.

use std::ffi::c_void;

use crate::context;
use crate::default_stream::RuntimeStream;
use crate::driver::{self, driver_functions};
use crate::entry::{entry_points, passed_on};
use crate::error::{CudartError, INVALID_COPY_DIRECTION, Outcome};

type To = *mut c_void;
type From = *const c_void;

driver_functions! {
    cuMemcpy(to: To, from: From, bytes: usize) => c"cuMemcpy" @ 4000;
    cuMemcpyHtoD(to: To, from: From, bytes: usize) => c"cuMemcpyHtoD" @ 3020;
    cuMemcpyDtoH(to: To, from: From, bytes: usize) => c"cuMemcpyDtoH" @ 3020;
    cuMemcpyDtoD(to: To, from: From, bytes: usize) => c"cuMemcpyDtoD" @ 3020;
    cuMemcpyAsync(to: To, from: From, bytes: usize, stream: RuntimeStream) => c"cuMemcpyAsync" @ 4000;
    cuMemcpyHtoDAsync(to: To, from: From, bytes: usize, stream: RuntimeStream) => c"cuMemcpyHtoDAsync" @ 3020;
    cuMemcpyDtoHAsync(to: To, from: From, bytes: usize, stream: RuntimeStream) => c"cuMemcpyDtoHAsync" @ 3020;
    cuMemcpyDtoDAsync(to: To, from: From, bytes: usize, stream: RuntimeStream) => c"cuMemcpyDtoDAsync" @ 3020;
    cuMemcpyPeer(to: To, to_context: *mut c_void, from: From, from_context: *mut c_void, bytes: usize) => c"cuMemcpyPeer" @ 4000;
    cuMemcpyPeerAsync(to: To, to_context: *mut c_void, from: From, from_context: *mut c_void, bytes: usize, stream: RuntimeStream) => c"cuMemcpyPeerAsync" @ 4000;
    cuMemsetD8(address: *mut c_void, value: u8, bytes: usize) => c"cuMemsetD8" @ 3020;
    cuMemsetD8Async(address: *mut c_void, value: u8, bytes: usize, stream: RuntimeStream) => c"cuMemsetD8Async" @ 3020;
    cuMemsetD2D8(address: *mut c_void, pitch: usize, value: u8, width: usize, height: usize) => c"cuMemsetD2D8" @ 3020;
    cuMemsetD2D8Async(address: *mut c_void, pitch: usize, value: u8, width: usize, height: usize, stream: RuntimeStream) => c"cuMemsetD2D8Async" @ 3020;
}

entry_points! {
    context cudaMemcpy(to: To, from: From, bytes: usize, kind: u32) = copy;
    context cudaMemcpy_ptds(to: To, from: From, bytes: usize, kind: u32) = copy_on_thread;
    context cudaMemcpyAsync | cudaMemcpyAsync_ptsz (to: To, from: From, bytes: usize, kind: u32, stream: RuntimeStream) = copy_async;
    context cudaMemcpyPeer(to: To, to_device: i32, from: From, from_device: i32, bytes: usize) = copy_peer;
    context cudaMemcpyPeerAsync(to: To, to_device: i32, from: From, from_device: i32, bytes: usize, stream: RuntimeStream) = copy_peer_async;
    context cudaMemset(address: To, value: i32, bytes: usize) = fill;
    context cudaMemset_ptds(address: To, value: i32, bytes: usize) = fill_on_thread;
    context cudaMemsetAsync | cudaMemsetAsync_ptsz (address: To, value: i32, bytes: usize, stream: RuntimeStream) = fill_async;
    context cudaMemset2D(address: To, pitch: usize, value: i32, width: usize, height: usize) = fill_rows;
    context cudaMemset2DAsync | cudaMemset2DAsync_ptsz (address: To, pitch: usize, value: i32, width: usize, height: usize, stream: RuntimeStream) = fill_rows_async;
}

passed_on! {
    context cudaMemcpyBatchAsync_with_index | cudaMemcpyBatchAsync_with_index_ptsz (to: *mut To, from: *mut From, bytes: *mut usize, count: usize, attributes: *mut c_void, indices: *mut usize, kinds: usize, failed: *mut usize, stream: RuntimeStream) => c"cuMemcpyBatchAsync" @ 12080;
    context cudaMemcpyBatchAsync_plain | cudaMemcpyBatchAsync_plain_ptsz (to: *mut To, from: *mut From, bytes: *mut usize, count: usize, attributes: *mut c_void, indices: *mut usize, kinds: usize, stream: RuntimeStream) => c"cuMemcpyBatchAsync" @ 13000;
}

/// `cudaMemcpyKind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemcpyKind {
    /// From the host to the host.
    Host,
    /// From the host to the device.
    ToDevice,
    /// From the device to the host.
    ToHost,
    /// Between devices or on one.
    Device,
    /// By the addresses.
    Any,
}

impl MemcpyKind {
    /// Reads a program's argument.
    pub(crate) fn of(kind: u32) -> Result<Self, CudartError> {
        match kind {
            0 => Ok(Self::Host),
            1 => Ok(Self::ToDevice),
            2 => Ok(Self::ToHost),
            3 => Ok(Self::Device),
            4 => Ok(Self::Any),
            _ => Err(INVALID_COPY_DIRECTION),
        }
    }
}

pub(crate) fn copy(to: To, from: From, bytes: usize, kind: u32) -> Outcome {
    let direction = MemcpyKind::of(kind)?;
    if bytes == 0 {
        return Ok(());
    }
    match direction {
        MemcpyKind::Host | MemcpyKind::Any => cuMemcpy(to, from, bytes),
        MemcpyKind::ToDevice => cuMemcpyHtoD(to, from, bytes),
        MemcpyKind::ToHost => cuMemcpyDtoH(to, from, bytes),
        MemcpyKind::Device => cuMemcpyDtoD(to, from, bytes),
    }
}

pub(crate) fn copy_async(
    to: To,
    from: From,
    bytes: usize,
    kind: u32,
    stream: RuntimeStream,
) -> Outcome {
    let direction = MemcpyKind::of(kind)?;
    if bytes == 0 {
        return Ok(());
    }
    match direction {
        MemcpyKind::Host | MemcpyKind::Any => cuMemcpyAsync(to, from, bytes, stream),
        MemcpyKind::ToDevice => cuMemcpyHtoDAsync(to, from, bytes, stream),
        MemcpyKind::ToHost => cuMemcpyDtoHAsync(to, from, bytes, stream),
        MemcpyKind::Device => cuMemcpyDtoDAsync(to, from, bytes, stream),
    }
}

fn copy_on_thread(to: To, from: From, bytes: usize, kind: u32) -> Outcome {
    copy_async(to, from, bytes, kind, RuntimeStream::PER_THREAD)?;
    driver::cuStreamSynchronize(RuntimeStream::PER_THREAD)
}

/// The contexts of two devices. The current context stays.
pub(crate) fn both(to: i32, from: i32) -> Result<(*mut c_void, *mut c_void), CudartError> {
    context::check_device(to)?;
    context::check_device(from)?;
    let current = context::current()?;
    let contexts = (context::retained(to)?, context::retained(from)?);
    driver::cuCtxSetCurrent(current)?;
    Ok(contexts)
}

fn copy_peer(to: To, to_device: i32, from: From, from_device: i32, bytes: usize) -> Outcome {
    let (to_context, from_context) = both(to_device, from_device)?;
    cuMemcpyPeer(to, to_context, from, from_context, bytes)
}

fn copy_peer_async(
    to: To,
    to_device: i32,
    from: From,
    from_device: i32,
    bytes: usize,
    stream: RuntimeStream,
) -> Outcome {
    let (to_context, from_context) = both(to_device, from_device)?;
    cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, stream)
}

/// Fills use the lowest byte of the value, like `memset`.
pub(crate) fn low_byte(value: i32) -> u8 {
    value.to_le_bytes()[0]
}

fn fill(address: To, value: i32, bytes: usize) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    cuMemsetD8(address, low_byte(value), bytes)
}

fn fill_on_thread(address: To, value: i32, bytes: usize) -> Outcome {
    fill_async(address, value, bytes, RuntimeStream::PER_THREAD)
}

fn fill_async(address: To, value: i32, bytes: usize, stream: RuntimeStream) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    cuMemsetD8Async(address, low_byte(value), bytes, stream)
}

fn fill_rows(address: To, pitch: usize, value: i32, width: usize, height: usize) -> Outcome {
    if width == 0 || height == 0 {
        return Ok(());
    }
    cuMemsetD2D8(address, pitch, low_byte(value), width, height)
}

fn fill_rows_async(
    address: To,
    pitch: usize,
    value: i32,
    width: usize,
    height: usize,
    stream: RuntimeStream,
) -> Outcome {
    if width == 0 || height == 0 {
        return Ok(());
    }
    cuMemsetD2D8Async(address, pitch, low_byte(value), width, height, stream)
}
