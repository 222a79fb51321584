//! Memory with an address, allocated in a context: linear, pitched and managed.

use apportion_sim_machine::{MachineReply, MachineRequest};

use crate::context::current;
use crate::driver::{ask, driver, tables};
use crate::error::{CudaError, INVALID_VALUE, OUT_OF_MEMORY, Outcome, UNKNOWN};
use crate::executables;
use crate::export::exports;
use crate::mapping;
use crate::pointer::Out;
use crate::tables::{MemoryKind, MemoryRange};

/// The alignment of rows of pitched memory.
const PITCH: usize = 512;
/// A request of this size never shares a block, so its block can be mapped at a chosen address.
const UNSHARED: u64 = (1 << 20) + 1;

exports! {
    cuMemAlloc(out: Out<u32>, bytes: u32) = allocate_v1 => "cuMemAlloc" @ 2000;
    cuMemAlloc_v2(out: Out<u64>, bytes: usize) = allocate => "cuMemAlloc" @ 3020;
    cuMemAllocPitch(out: Out<u32>, pitch: Out<u32>, width: u32, height: u32, element: u32) = allocate_pitch_v1 => "cuMemAllocPitch" @ 2000;
    cuMemAllocPitch_v2(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) = allocate_pitch => "cuMemAllocPitch" @ 3020;
    cuMemAllocManaged(out: Out<u64>, bytes: usize, flags: u32) = allocate_managed => "cuMemAllocManaged" @ 6000;
    cuMemFree(address: u32) = free_v1 => "cuMemFree" @ 2000;
    cuMemFree_v2(address: u64) = free => "cuMemFree" @ 3020;
    cuMemGetInfo(free: Out<u32>, total: Out<u32>) = get_info_v1 => "cuMemGetInfo" @ 2000;
    cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) = get_info => "cuMemGetInfo" @ 3020;
    cuMemGetAddressRange(base: Out<u32>, bytes: Out<u32>, address: u32) = get_range_v1 => "cuMemGetAddressRange" @ 2000;
    cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) = get_range => "cuMemGetAddressRange" @ 3020;
}

/// Maps what the machine has placed and enters it into the tables.
pub(crate) fn enter_allocation(
    reply: &MachineReply,
    bytes: u64,
    context: u64,
    device: i32,
    kind: impl FnOnce(u64) -> MemoryKind,
    map: fn(u64) -> Result<u64, CudaError>,
) -> Result<u64, CudaError> {
    let MachineReply::Allocated {
        allocation,
        placement,
    } = *reply
    else {
        return Err(UNKNOWN);
    };
    let mut tables = tables();
    let mapped = tables.block(placement.block, placement.block_bytes, map);
    let Ok(base) = mapped else {
        drop(tables);
        ask(MachineRequest::Free(allocation))?;
        return Err(OUT_OF_MEMORY);
    };
    let (address, serial) = (base + placement.offset, tables.fresh());
    let range = MemoryRange {
        bytes,
        kind: kind(allocation),
        device,
        context,
        serial,
    };
    tables.ranges.insert(address, range);
    Ok(address)
}

fn allocate_in_context(
    bytes: u64,
    managed: bool,
    map: fn(u64) -> Result<u64, CudaError>,
) -> Result<u64, CudaError> {
    let (handle, context) = current()?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let reply = ask(MachineRequest::Allocate {
        context: context.name,
        bytes,
    })?;
    let kind = if managed {
        MemoryKind::managed
    } else {
        MemoryKind::device
    };
    enter_allocation(&reply, bytes, handle, context.device, kind, map)
}

fn allocate(out: Out<u64>, bytes: usize) -> Outcome {
    out.check()?;
    out.put(allocate_in_context(bytes as u64, false, mapping::lazy)?)
}

/// The first API has 32-bit pointers.
fn allocate_v1(out: Out<u32>, bytes: u32) -> Outcome {
    out.check()?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let bytes = u64::from(bytes).max(UNSHARED);
    let address = allocate_in_context(bytes, false, mapping::lazy_low)?;
    out.put(u32::try_from(address).map_err(|_| UNKNOWN)?)
}

fn pitched(width: usize, height: usize, element: u32) -> Result<(usize, u64), CudaError> {
    if width == 0 || height == 0 || ![4, 8, 16].contains(&element) {
        return Err(INVALID_VALUE);
    }
    let pitch = width.checked_next_multiple_of(PITCH).ok_or(OUT_OF_MEMORY)?;
    Ok((
        pitch,
        pitch.checked_mul(height).ok_or(OUT_OF_MEMORY)? as u64,
    ))
}

fn allocate_pitch(
    out: Out<u64>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> Outcome {
    out.check()?;
    pitch.check()?;
    let (row, bytes) = pitched(width, height, element)?;
    out.put(allocate_in_context(bytes, false, mapping::lazy)?)?;
    pitch.put(row)
}

fn allocate_pitch_v1(
    out: Out<u32>,
    pitch: Out<u32>,
    width: u32,
    height: u32,
    element: u32,
) -> Outcome {
    pitch.check()?;
    let (row, bytes) = pitched(width as usize, height as usize, element)?;
    allocate_v1(out, u32::try_from(bytes).map_err(|_| OUT_OF_MEMORY)?)?;
    pitch.put(u32::try_from(row).map_err(|_| UNKNOWN)?)
}

fn allocate_managed(out: Out<u64>, bytes: usize, flags: u32) -> Outcome {
    out.check()?;
    if flags != 1 && flags != 2 {
        return Err(INVALID_VALUE);
    }
    out.put(allocate_in_context(bytes as u64, true, mapping::lazy)?)
}

/// Frees an allocation. Only its start address is valid.
fn free(address: u64) -> Outcome {
    if address == 0 {
        return Ok(());
    }
    let range = tables()
        .ranges
        .get(&address)
        .copied()
        .ok_or(INVALID_VALUE)?;
    match range.kind {
        MemoryKind::Device { allocation } | MemoryKind::Managed { allocation } => {
            free_allocation(address, range, allocation)
        }
        MemoryKind::Pooled { allocation, .. } => {
            free_allocation(address, range, allocation)?;
            tables().touch_pools();
            Ok(())
        }
        MemoryKind::Graph => executables::free(address),
        MemoryKind::Host { .. }
        | MemoryKind::Registered { .. }
        | MemoryKind::Variable
        | MemoryKind::Opened { .. }
        | MemoryKind::Mapped { .. } => Err(INVALID_VALUE),
    }
}

/// Frees an allocation. It leaves the tables first: once the machine has freed it, another thread may get its place.
pub(crate) fn free_allocation(address: u64, range: MemoryRange, allocation: u64) -> Outcome {
    if tables().ranges.remove(&address).is_none() {
        return Err(INVALID_VALUE);
    }
    let freed = ask(MachineRequest::Free(allocation));
    if freed.is_err() {
        tables().ranges.insert(address, range);
    }
    freed.map(drop)
}

fn free_v1(address: u32) -> Outcome {
    free(u64::from(address))
}

fn memory_of_current() -> Result<(u64, u64), CudaError> {
    let (_, context) = current()?;
    let card = driver()?.card(context.device)?;
    match ask(MachineRequest::MemoryInfo(card))? {
        MachineReply::Memory { free, total } => Ok((free, total)),
        _ => Err(UNKNOWN),
    }
}

/// Either pointer may be null.
fn get_info(free: Out<usize>, total: Out<usize>) -> Outcome {
    let (left, all) = memory_of_current()?;
    free.offer(left as usize);
    total.offer(all as usize);
    Ok(())
}

fn get_info_v1(free: Out<u32>, total: Out<u32>) -> Outcome {
    let (left, all) = memory_of_current()?;
    free.offer(u32::try_from(left).unwrap_or(u32::MAX));
    total.offer(u32::try_from(all).unwrap_or(u32::MAX));
    Ok(())
}

fn get_range(base: Out<u64>, bytes: Out<usize>, address: u64) -> Outcome {
    let (start, range) = tables()
        .range_of(address)
        .map_err(|_| crate::error::NOT_FOUND)?;
    base.offer(start);
    bytes.offer(range.bytes as usize);
    Ok(())
}

fn get_range_v1(base: Out<u32>, bytes: Out<u32>, address: u32) -> Outcome {
    let (start, range) = tables()
        .range_of(u64::from(address))
        .map_err(|_| crate::error::NOT_FOUND)?;
    base.offer(u32::try_from(start).map_err(|_| INVALID_VALUE)?);
    bytes.offer(u32::try_from(range.bytes).map_err(|_| INVALID_VALUE)?);
    Ok(())
}
