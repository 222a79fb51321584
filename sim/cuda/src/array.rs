//! Arrays: images that textures and surfaces read. Their memory is device memory in rows and is counted like all other
//! memory.

use std::collections::HashMap;

use apportion_sim_machine::MachineRequest;

use crate::array_descriptor::{
    ALIGNMENT, ArrayDescriptor2D, ArrayDescriptor3D, Narrow, Narrow3D, Wide, Wide3D, measure,
};
use crate::context::current;
use crate::driver::{ask, driver, tables};
use crate::error::{CudaError, INVALID_HANDLE, INVALID_VALUE, Outcome, UNKNOWN};
use crate::export::exports;
use crate::mapping;
use crate::memory::enter_allocation;
use crate::pointer::{In, Out};
use crate::tables::MemoryKind;

/// The arrays of a process by handle.
pub(crate) type Arrays = HashMap<u64, CudaArray>;

/// An array that the program has created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CudaArray {
    descriptor: Wide3D,
    layout: ArrayLayout,
    device: i32,
    /// Whether it is a level of a mipmapped array. Such a level lives as long as the mipmapped array.
    is_level: bool,
}

/// How an array lies in memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ArrayLayout {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) height: u64,
    pub(crate) bytes: u64,
}

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ArrayMemoryRequirements {
    bytes: usize,
    alignment: usize,
    reserved: [u32; 4],
}

impl ArrayMemoryRequirements {
    pub(crate) fn of(bytes: u64) -> Self {
        Self {
            bytes: bytes as usize,
            alignment: ALIGNMENT as usize,
            reserved: [0; 4],
        }
    }
}

exports! {
    cuArrayCreate(out: Out<u64>, descriptor: In<Narrow>) = create_v1 => "cuArrayCreate" @ 2000;
    cuArrayCreate_v2(out: Out<u64>, descriptor: In<Wide>) = create => "cuArrayCreate" @ 3020;
    cuArray3DCreate(out: Out<u64>, descriptor: In<Narrow3D>) = create_3d_v1 => "cuArray3DCreate" @ 2000;
    cuArray3DCreate_v2(out: Out<u64>, descriptor: In<Wide3D>) = create_3d => "cuArray3DCreate" @ 3020;
    cuArrayGetDescriptor(descriptor: Out<Narrow>, array: u64) = get_v1 => "cuArrayGetDescriptor" @ 2000;
    cuArrayGetDescriptor_v2(descriptor: Out<Wide>, array: u64) = get => "cuArrayGetDescriptor" @ 3020;
    cuArray3DGetDescriptor(descriptor: Out<Narrow3D>, array: u64) = get_3d_v1 => "cuArray3DGetDescriptor" @ 2000;
    cuArray3DGetDescriptor_v2(descriptor: Out<Wide3D>, array: u64) = get_3d => "cuArray3DGetDescriptor" @ 3020;
    cuArrayGetMemoryRequirements(requirements: Out<ArrayMemoryRequirements>, array: u64, device: i32) = get_requirements => "cuArrayGetMemoryRequirements" @ 11060;
    cuArrayDestroy(array: u64) = destroy => "cuArrayDestroy" @ 2000;
}

/// Creates a level of a mipmapped array. It is an array that shares the memory of the mipmapped one.
pub(crate) fn level(descriptor: Wide3D, address: u64, device: i32) -> Result<u64, CudaError> {
    let (pitch, height, bytes) = measure(&descriptor)?;
    let layout = ArrayLayout {
        address,
        pitch,
        height,
        bytes,
    };
    let mut tables = tables();
    let handle = tables.fresh();
    tables.arrays.insert(
        handle,
        CudaArray {
            descriptor,
            layout,
            device,
            is_level: true,
        },
    );
    Ok(handle)
}

/// How an array lies in memory.
pub(crate) fn layout(handle: u64) -> Result<ArrayLayout, CudaError> {
    array(handle).map(|array| array.layout)
}

/// The bytes of an array's elements.
pub(crate) fn element_bytes(handle: u64) -> Result<usize, CudaError> {
    Ok(array(handle)?.descriptor.element_bytes()? as usize)
}

/// The descriptor that the array was created from.
pub(crate) fn descriptor(handle: u64) -> Result<Wide3D, CudaError> {
    array(handle).map(|array| array.descriptor)
}

/// The address of the byte at `offset`, if `bytes` bytes of the array follow from there.
pub(crate) fn address(handle: u64, offset: u64, bytes: u64) -> Result<u64, CudaError> {
    let layout = layout(handle)?;
    let end = offset.checked_add(bytes).filter(|end| *end <= layout.bytes);
    end.map(|_| layout.address + offset).ok_or(INVALID_VALUE)
}

fn array(handle: u64) -> Result<CudaArray, CudaError> {
    tables().arrays.get(&handle).copied().ok_or(INVALID_HANDLE)
}

fn create_from(out: Out<u64>, descriptor: Wide3D) -> Outcome {
    out.check()?;
    let (handle, context) = current()?;
    let (pitch, height, bytes) = measure(&descriptor)?;
    if descriptor.is_empty() {
        return out.put(enter(descriptor, ArrayLayout::default(), context.device));
    }
    let reply = ask(MachineRequest::Allocate {
        context: context.name,
        bytes,
    })?;
    let device = context.device;
    let kind = MemoryKind::device;
    let address = enter_allocation(&reply, bytes, handle, device, kind, mapping::lazy)?;
    let layout = ArrayLayout {
        address,
        pitch,
        height,
        bytes,
    };
    out.put(enter(descriptor, layout, device))
}

fn enter(descriptor: Wide3D, layout: ArrayLayout, device: i32) -> u64 {
    let mut tables = tables();
    let handle = tables.fresh();
    tables.arrays.insert(
        handle,
        CudaArray {
            descriptor,
            layout,
            device,
            is_level: false,
        },
    );
    handle
}

/// Whether physical memory can be mapped into an array.
pub(crate) fn takes_tiles(handle: u64) -> Result<bool, CudaError> {
    Ok(array(handle)?.descriptor.is_empty())
}

fn create(out: Out<u64>, descriptor: In<Wide>) -> Outcome {
    let ArrayDescriptor2D {
        width,
        height,
        format,
        channels,
    } = descriptor.get()?;
    create_from(
        out,
        ArrayDescriptor3D {
            width,
            height,
            depth: 0,
            format,
            channels,
            flags: 0,
        },
    )
}

fn create_v1(out: Out<u64>, descriptor: In<Narrow>) -> Outcome {
    let ArrayDescriptor2D {
        width,
        height,
        format,
        channels,
    } = descriptor.get()?;
    let (width, height) = (width as usize, height as usize);
    create_from(
        out,
        ArrayDescriptor3D {
            width,
            height,
            depth: 0,
            format,
            channels,
            flags: 0,
        },
    )
}

fn create_3d(out: Out<u64>, descriptor: In<Wide3D>) -> Outcome {
    create_from(out, descriptor.get()?)
}

fn create_3d_v1(out: Out<u64>, descriptor: In<Narrow3D>) -> Outcome {
    let ArrayDescriptor3D {
        width,
        height,
        depth,
        format,
        channels,
        flags,
    } = descriptor.get()?;
    let (width, height, depth) = (width as usize, height as usize, depth as usize);
    create_from(
        out,
        ArrayDescriptor3D {
            width,
            height,
            depth,
            format,
            channels,
            flags,
        },
    )
}

fn get(out: Out<Wide>, handle: u64) -> Outcome {
    let ArrayDescriptor3D {
        width,
        height,
        format,
        channels,
        ..
    } = array(handle)?.descriptor;
    out.put(ArrayDescriptor2D {
        width,
        height,
        format,
        channels,
    })
}

fn get_v1(out: Out<Narrow>, handle: u64) -> Outcome {
    let ArrayDescriptor3D {
        width,
        height,
        format,
        channels,
        ..
    } = array(handle)?.descriptor;
    out.put(ArrayDescriptor2D {
        width: narrow(width)?,
        height: narrow(height)?,
        format,
        channels,
    })
}

fn get_3d(out: Out<Wide3D>, handle: u64) -> Outcome {
    out.put(array(handle)?.descriptor)
}

fn get_3d_v1(out: Out<Narrow3D>, handle: u64) -> Outcome {
    let ArrayDescriptor3D {
        width,
        height,
        depth,
        format,
        channels,
        flags,
    } = array(handle)?.descriptor;
    let (width, height, depth) = (narrow(width)?, narrow(height)?, narrow(depth)?);
    out.put(ArrayDescriptor3D {
        width,
        height,
        depth,
        format,
        channels,
        flags,
    })
}

fn narrow(size: usize) -> Result<u32, CudaError> {
    u32::try_from(size).map_err(|_| UNKNOWN)
}

fn get_requirements(out: Out<ArrayMemoryRequirements>, handle: u64, device: i32) -> Outcome {
    driver()?.card(device)?;
    let array = array(handle)?;
    if array.device != device {
        return Err(INVALID_VALUE);
    }
    out.put(ArrayMemoryRequirements::of(measure(&array.descriptor)?.2))
}

fn destroy(handle: u64) -> Outcome {
    let array = array(handle)?;
    if array.is_level {
        return Err(INVALID_HANDLE);
    }
    let address = array.layout.address;
    let range = tables().ranges.get(&address).copied();
    if let Some(range) = range
        && let MemoryKind::Device { allocation } = range.kind
    {
        crate::memory::free_allocation(address, range, allocation)?;
    }
    crate::tiles::end(handle)?;
    tables()
        .arrays
        .remove(&handle)
        .map(drop)
        .ok_or(INVALID_HANDLE)
}
