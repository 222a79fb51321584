//! Mipmapped arrays: an image at several sizes in one allocation.

use std::collections::HashMap;

use apportion_sim_machine::MachineRequest;

use crate::array::{self, ArrayMemoryRequirements};
use crate::array_descriptor::{Wide3D, measure};
use crate::context::current;
use crate::driver::{ask, driver, tables};
use crate::error::{CudaError, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, Outcome};
use crate::export::exports;
use crate::mapping;
use crate::memory::{enter_allocation, free_allocation};
use crate::pointer::{In, Out};
use crate::tables::MemoryKind;

/// The mipmapped arrays of a process by handle.
pub(crate) type Mipmaps = HashMap<u64, MipmappedArray>;

/// A mipmapped array: the handles of its levels, largest first.
#[derive(Debug, Clone)]
pub(crate) struct MipmappedArray {
    levels: Vec<u64>,
    address: u64,
    bytes: u64,
    device: i32,
}

impl MipmappedArray {
    /// The handles of its levels, largest first.
    pub(crate) fn levels(&self) -> &[u64] {
        &self.levels
    }
}

exports! {
    cuMipmappedArrayCreate(out: Out<u64>, descriptor: In<Wide3D>, levels: u32) = create => "cuMipmappedArrayCreate" @ 5000;
    cuMipmappedArrayGetLevel(out: Out<u64>, mipmap: u64, level: u32) = get_level => "cuMipmappedArrayGetLevel" @ 5000;
    cuMipmappedArrayGetMemoryRequirements(out: Out<ArrayMemoryRequirements>, mipmap: u64, device: i32) = get_requirements => "cuMipmappedArrayGetMemoryRequirements" @ 11060;
    cuMipmappedArrayDestroy(mipmap: u64) = destroy => "cuMipmappedArrayDestroy" @ 5000;
}

fn mipmap(handle: u64) -> Result<MipmappedArray, CudaError> {
    tables().mipmaps.get(&handle).cloned().ok_or(INVALID_HANDLE)
}

/// If `levels` is more than the image can be halved, the rest is cut off, as the driver does.
fn create(out: Out<u64>, descriptor: In<Wide3D>, levels: u32) -> Outcome {
    out.check()?;
    let descriptor = descriptor.get()?;
    let (handle, context) = current()?;
    if levels == 0 {
        return Err(INVALID_VALUE);
    }
    let levels = levels.min(descriptor.most_levels());
    let sizes: Result<Vec<u64>, CudaError> = (0..levels)
        .map(|level| Ok(measure(&descriptor.halved(level))?.2))
        .collect();
    let sizes = sizes?;
    let bytes = sizes
        .iter()
        .try_fold(0_u64, |all, size| all.checked_add(*size))
        .ok_or(OUT_OF_MEMORY)?;
    let reply = ask(MachineRequest::Allocate {
        context: context.name,
        bytes,
    })?;
    let device = context.device;
    let kind = MemoryKind::device;
    let address = enter_allocation(&reply, bytes, handle, device, kind, mapping::lazy)?;
    let mut next = address;
    let mut arrays = Vec::new();
    for (level, size) in (0..levels).zip(sizes) {
        arrays.push(array::level(descriptor.halved(level), next, device)?);
        next += size;
    }
    let mut tables = tables();
    let handle = tables.fresh();
    tables.mipmaps.insert(
        handle,
        MipmappedArray {
            levels: arrays,
            address,
            bytes,
            device,
        },
    );
    out.put(handle)
}

fn get_level(out: Out<u64>, handle: u64, level: u32) -> Outcome {
    let mipmap = mipmap(handle)?;
    out.put(*mipmap.levels.get(level as usize).ok_or(INVALID_VALUE)?)
}

fn get_requirements(out: Out<ArrayMemoryRequirements>, handle: u64, device: i32) -> Outcome {
    driver()?.card(device)?;
    let mipmap = mipmap(handle)?;
    if mipmap.device != device {
        return Err(INVALID_VALUE);
    }
    out.put(ArrayMemoryRequirements::of(mipmap.bytes))
}

fn destroy(handle: u64) -> Outcome {
    let mipmap = mipmap(handle)?;
    let range = tables().ranges.get(&mipmap.address).copied();
    if let Some(range) = range
        && let MemoryKind::Device { allocation } = range.kind
    {
        free_allocation(mipmap.address, range, allocation)?;
    }
    let mut tables = tables();
    for level in mipmap.levels {
        tables.arrays.remove(&level);
    }
    tables.mipmaps.remove(&handle);
    Ok(())
}
