//! Host memory that devices can reach. It costs no device memory, so the machine never hears of it.

use crate::context::current;
use crate::driver::tables;
use crate::error::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, Outcome, UNKNOWN,
};
use crate::export::exports;
use crate::mapping;
use crate::number::ApiInteger;
use crate::pointer::Out;
use crate::tables::{MemoryKind, MemoryRange};

/// `CU_MEMHOSTALLOC_*` are the bits below this, `CU_MEMHOSTREGISTER_*` those below the next.
const ALLOCATE_FLAGS: u32 = 0x8;
const REGISTER_FLAGS: u32 = 0x10;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`: the flags of memory that was allocated without flags.
const PLAIN: u32 = 3;

exports! {
    cuMemAllocHost(out: Out<u64>, bytes: u32) = allocate => "cuMemAllocHost" @ 2000;
    cuMemAllocHost_v2(out: Out<u64>, bytes: usize) = allocate => "cuMemAllocHost" @ 3020;
    cuMemHostAlloc(out: Out<u64>, bytes: usize, flags: u32) = allocate_with_flags => "cuMemHostAlloc" @ 2020;
    cuMemFreeHost(address: u64) = free => "cuMemFreeHost" @ 2000;
    cuMemHostRegister(address: u64, bytes: usize, flags: u32) = register => "cuMemHostRegister" @ 4000;
    cuMemHostRegister_v2(address: u64, bytes: usize, flags: u32) = register => "cuMemHostRegister" @ 6050;
    cuMemHostUnregister(address: u64) = unregister => "cuMemHostUnregister" @ 4000;
    cuMemHostGetDevicePointer(out: Out<u32>, address: u64, flags: u32) = get_device_pointer_v1 => "cuMemHostGetDevicePointer" @ 2020;
    cuMemHostGetDevicePointer_v2(out: Out<u64>, address: u64, flags: u32) = get_device_pointer => "cuMemHostGetDevicePointer" @ 3020;
    cuMemHostGetFlags(flags: Out<u32>, address: u64) = get_flags => "cuMemHostGetFlags" @ 2030;
}

fn allocate(out: Out<u64>, bytes: impl ApiInteger) -> Outcome {
    allocate_with_flags(out, bytes.number() as usize, PLAIN)
}

fn allocate_with_flags(out: Out<u64>, bytes: usize, flags: u32) -> Outcome {
    out.check()?;
    let (context, of) = current()?;
    if bytes == 0 || flags >= ALLOCATE_FLAGS {
        return Err(INVALID_VALUE);
    }
    let bytes = bytes as u64;
    let address = mapping::lazy(bytes)?;
    let mut tables = tables();
    let serial = tables.fresh();
    let range = MemoryRange {
        bytes,
        kind: MemoryKind::Host { flags },
        device: of.device,
        context,
        serial,
    };
    tables.ranges.insert(address, range);
    out.put(address)
}

fn free(address: u64) -> Outcome {
    let mut tables = tables();
    match tables.ranges.get(&address).copied() {
        Some(MemoryRange {
            bytes,
            kind: MemoryKind::Host { .. },
            ..
        }) => {
            tables.ranges.remove(&address);
            drop(tables);
            mapping::unmap(address, bytes);
            Ok(())
        }
        Some(_) | None => Err(INVALID_VALUE),
    }
}

fn register(address: u64, bytes: usize, flags: u32) -> Outcome {
    let (context, of) = current()?;
    if address == 0 || bytes == 0 || flags >= REGISTER_FLAGS {
        return Err(INVALID_VALUE);
    }
    let bytes = bytes as u64;
    let end = address.checked_add(bytes).ok_or(INVALID_VALUE)?;
    let mut tables = tables();
    let starts_inside = tables.ranges.range(address..end).next().is_some();
    if starts_inside || tables.range_of(address).is_ok() {
        return Err(HOST_MEMORY_ALREADY_REGISTERED);
    }
    let serial = tables.fresh();
    let kind = MemoryKind::Registered { flags };
    tables.ranges.insert(
        address,
        MemoryRange {
            bytes,
            kind,
            device: of.device,
            context,
            serial,
        },
    );
    Ok(())
}

fn unregister(address: u64) -> Outcome {
    let mut tables = tables();
    match tables.ranges.get(&address).map(|range| range.kind) {
        Some(MemoryKind::Registered { .. }) => {
            tables.ranges.remove(&address);
            Ok(())
        }
        Some(_) | None => Err(HOST_MEMORY_NOT_REGISTERED),
    }
}

/// Devices reach host memory at its host address.
fn get_device_pointer(out: Out<u64>, address: u64, flags: u32) -> Outcome {
    out.check()?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    let range = tables().range_of(address)?.1;
    match range.kind {
        MemoryKind::Host { .. } | MemoryKind::Registered { .. } => out.put(address),
        MemoryKind::Device { .. }
        | MemoryKind::Managed { .. }
        | MemoryKind::Pooled { .. }
        | MemoryKind::Variable
        | MemoryKind::Opened { .. }
        | MemoryKind::Graph
        | MemoryKind::Mapped { .. } => Err(INVALID_VALUE),
    }
}

/// A 32-bit pointer seldom reaches the host's memory.
fn get_device_pointer_v1(out: Out<u32>, address: u64, flags: u32) -> Outcome {
    let mut wide = 0;
    get_device_pointer(Out::to(&mut wide), address, flags)?;
    out.put(u32::try_from(wide).map_err(|_| UNKNOWN)?)
}

fn get_flags(flags: Out<u32>, address: u64) -> Outcome {
    let range = tables().range_of(address)?.1;
    match range.kind {
        MemoryKind::Host { flags: own } | MemoryKind::Registered { flags: own } => flags.put(own),
        MemoryKind::Device { .. }
        | MemoryKind::Managed { .. }
        | MemoryKind::Pooled { .. }
        | MemoryKind::Variable
        | MemoryKind::Opened { .. }
        | MemoryKind::Graph
        | MemoryKind::Mapped { .. } => Err(INVALID_VALUE),
    }
}
