//! Copies of rectangles and boxes in linear memory.

use std::ffi::c_void;

use crate::context;
use crate::copy::{MemcpyKind, low_byte};
use crate::default_stream::RuntimeStream;
use crate::driver::{self, driver_functions};
use crate::entry::entry_points;
use crate::error::{CudartError, INVALID_VALUE, NOT_SUPPORTED, Outcome};
use crate::memory;

/// One side of `CUDA_MEMCPY3D`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct CopySide3D {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: u32,
    host: usize,
    device: usize,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Memcpy3D {
    from: CopySide3D,
    to: CopySide3D,
    width: usize,
    height: usize,
    depth: usize,
}

/// `cudaPos` and `cudaExtent`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct PosOrExtent {
    x: usize,
    y: usize,
    z: usize,
}

/// `cudaPitchedPtr`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct PitchedPtr {
    address: *mut c_void,
    pitch: usize,
    width: usize,
    height: usize,
}

/// `cudaMemcpy3DParms`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Memcpy3DParms {
    from_array: *mut c_void,
    from_position: PosOrExtent,
    from: PitchedPtr,
    to_array: *mut c_void,
    to_position: PosOrExtent,
    to: PitchedPtr,
    extent: PosOrExtent,
    kind: u32,
}

driver_functions! {
    cuMemcpy3D(boxes: *const Memcpy3D) => c"cuMemcpy3D" @ 3020;
    cuMemcpy3DAsync(boxes: *const Memcpy3D, stream: RuntimeStream) => c"cuMemcpy3DAsync" @ 3020;
    cuMemsetD2D8Async(address: *mut c_void, pitch: usize, value: u8, width: usize, height: usize, stream: RuntimeStream) => c"cuMemsetD2D8Async" @ 3020;
}

entry_points! {
    context cudaMemcpy2D(to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize, height: usize, kind: u32) = copy_rows;
    context cudaMemcpy2D_ptds(to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize, height: usize, kind: u32) = copy_rows_on_thread;
    context cudaMemcpy2DAsync | cudaMemcpy2DAsync_ptsz (to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize, height: usize, kind: u32, stream: RuntimeStream) = copy_rows_async;
    context cudaMemcpy3D(parameters: *const Memcpy3DParms) = copy_box;
    context cudaMemcpy3D_ptds(parameters: *const Memcpy3DParms) = copy_box_on_thread;
    context cudaMemcpy3DAsync | cudaMemcpy3DAsync_ptsz (parameters: *const Memcpy3DParms, stream: RuntimeStream) = copy_box_async;
    context cudaMalloc3D(out: *mut PitchedPtr, extent: PosOrExtent) = malloc_box;
    context cudaMemset3D(target: PitchedPtr, value: i32, extent: PosOrExtent) = fill_box;
    context cudaMemset3DAsync(target: PitchedPtr, value: i32, extent: PosOrExtent, stream: RuntimeStream) = fill_box_async;
}

/// `CU_MEMORYTYPE_*`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const UNIFIED: u32 = 4;

impl MemcpyKind {
    /// The memory types of the source and the destination.
    fn kinds(self) -> (u32, u32) {
        match self {
            Self::Host => (HOST, HOST),
            Self::ToDevice => (HOST, DEVICE),
            Self::ToHost => (DEVICE, HOST),
            Self::Device => (DEVICE, DEVICE),
            Self::Any => (UNIFIED, UNIFIED),
        }
    }
}

impl CopySide3D {
    fn linear(kind: u32, address: *const c_void, pitch: usize, height: usize) -> Self {
        let address = address.expose_provenance();
        Self {
            kind,
            host: if kind == HOST { address } else { 0 },
            device: if kind == HOST { 0 } else { address },
            pitch,
            height,
            ..Self::default()
        }
    }

    fn at(self, position: PosOrExtent) -> Self {
        Self {
            x: position.x,
            y: position.y,
            z: position.z,
            ..self
        }
    }
}

fn rows(
    to: (*mut c_void, usize),
    from: (*const c_void, usize),
    width: usize,
    height: usize,
    kind: u32,
) -> Result<Option<Memcpy3D>, CudartError> {
    let (read, written) = MemcpyKind::of(kind)?.kinds();
    if width == 0 || height == 0 {
        return Ok(None);
    }
    if to.1 < width || from.1 < width {
        return Err(CudartError(12));
    }
    Ok(Some(Memcpy3D {
        from: CopySide3D::linear(read, from.0, from.1, height),
        to: CopySide3D::linear(written, to.0, to.1, height),
        width,
        height,
        depth: 1,
    }))
}

fn copy_rows(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: u32,
) -> Outcome {
    match rows((to, to_pitch), (from, from_pitch), width, height, kind)? {
        Some(boxes) => cuMemcpy3D(&raw const boxes),
        None => Ok(()),
    }
}

fn copy_rows_async(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: u32,
    stream: RuntimeStream,
) -> Outcome {
    match rows((to, to_pitch), (from, from_pitch), width, height, kind)? {
        Some(boxes) => cuMemcpy3DAsync(&raw const boxes, stream),
        None => Ok(()),
    }
}

fn copy_rows_on_thread(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: u32,
) -> Outcome {
    let stream = RuntimeStream::PER_THREAD;
    copy_rows_async(to, to_pitch, from, from_pitch, width, height, kind, stream)?;
    driver::cuStreamSynchronize(stream)
}

fn boxes(parameters: *const Memcpy3DParms) -> Result<Memcpy3D, CudartError> {
    // SAFETY: a pointer that is not null points to a whole structure.
    let given = *unsafe { parameters.as_ref() }.ok_or(INVALID_VALUE)?;
    if !given.from_array.is_null() || !given.to_array.is_null() {
        return Err(NOT_SUPPORTED);
    }
    let (read, written) = MemcpyKind::of(given.kind)?.kinds();
    let side = |kind, memory: PitchedPtr| {
        CopySide3D::linear(kind, memory.address, memory.pitch, memory.height)
    };
    Ok(Memcpy3D {
        from: side(read, given.from).at(given.from_position),
        to: side(written, given.to).at(given.to_position),
        width: given.extent.x,
        height: given.extent.y,
        depth: given.extent.z,
    })
}

fn copy_box(parameters: *const Memcpy3DParms) -> Outcome {
    let boxes = boxes(parameters)?;
    cuMemcpy3D(&raw const boxes)
}

fn copy_box_async(parameters: *const Memcpy3DParms, stream: RuntimeStream) -> Outcome {
    let boxes = boxes(parameters)?;
    cuMemcpy3DAsync(&raw const boxes, stream)
}

fn copy_box_on_thread(parameters: *const Memcpy3DParms) -> Outcome {
    copy_box_async(parameters, RuntimeStream::PER_THREAD)?;
    driver::cuStreamSynchronize(RuntimeStream::PER_THREAD)
}

fn malloc_box(out: *mut PitchedPtr, extent: PosOrExtent) -> Outcome {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let (mut address, mut pitch) = (std::ptr::null_mut(), 0);
    let height = extent.y.checked_mul(extent.z).ok_or(INVALID_VALUE)?;
    memory::malloc_pitch(&raw mut address, &raw mut pitch, extent.x, height)?;
    let pitched = PitchedPtr {
        address,
        pitch,
        width: extent.x,
        height: extent.y,
    };
    // SAFETY: the program gave a valid pointer for the result.
    unsafe { out.write(pitched) };
    Ok(())
}

fn fill_box(target: PitchedPtr, value: i32, extent: PosOrExtent) -> Outcome {
    fill_box_async(target, value, extent, RuntimeStream::NONE)?;
    context::current().and_then(|_| driver::cuStreamSynchronize(RuntimeStream::NONE))
}

/// Fills a box, slice by slice.
fn fill_box_async(
    target: PitchedPtr,
    value: i32,
    extent: PosOrExtent,
    stream: RuntimeStream,
) -> Outcome {
    if extent.x == 0 || extent.y == 0 {
        return Ok(());
    }
    let slice = target.pitch.saturating_mul(target.height);
    (0..extent.z).try_for_each(|z| {
        let address = target.address.wrapping_byte_add(slice.saturating_mul(z));
        cuMemsetD2D8Async(
            address,
            target.pitch,
            low_byte(value),
            extent.x,
            extent.y,
            stream,
        )
    })
}
