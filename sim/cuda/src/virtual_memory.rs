//! Virtual memory: address ranges, physical memory, and mappings between them.
//!
//! Physical memory is a memory file, so the same bytes can be mapped twice and in several processes.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use apportion_sim_machine::{MachineLocation, MachineReply, MachineRequest};

use crate::driver::{ask, create as create_in_machine, driver, tables};
use crate::error::{CudaError, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Outcome, UNKNOWN};
use crate::export::exports;
use crate::location::{HOST, MemAccessDesc, MemLocation, READ, READ_WRITE};
use crate::mapping;
use crate::memory_file;
use crate::multicast;
use crate::pointer::{In, Out};
use crate::retained_memory::{descriptor_of, let_go};
use crate::tables::{MemoryKind, MemoryRange, ProcessTables};

/// The virtual memory of a process.
#[derive(Debug, Default)]
pub(crate) struct VirtualMemory {
    physical: HashMap<u64, ReferencedPhysical>,
    reserved: BTreeMap<u64, u64>,
}

/// Physical memory that this process has references to.
#[derive(Debug)]
pub(crate) struct ReferencedPhysical {
    pub(crate) name: u64,
    pub(crate) file: OwnedFd,
    bytes: u64,
    pub(crate) properties: MemAllocationProp,
    handles: u32,
    pub(crate) mappings: u32,
}

/// `CUmemAllocationProp`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct MemAllocationProp {
    kind: u32,
    handle_types: u32,
    pub(crate) place: MemLocation,
    metadata: u64,
    compression: u8,
    is_rdma_capable: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// The granularity of sizes and addresses.
const GRANULE: u64 = 2 << 20;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, the only type here.
const DESCRIPTOR: u32 = 1;

exports! {
    cuMemAddressReserve(out: Out<u64>, bytes: usize, alignment: usize, wish: u64, flags: u64) = reserve => "cuMemAddressReserve" @ 10020;
    cuMemAddressFree(address: u64, bytes: usize) = free_addresses => "cuMemAddressFree" @ 10020;
    cuMemCreate(out: Out<u64>, bytes: usize, properties: In<MemAllocationProp>, flags: u64) = create => "cuMemCreate" @ 10020;
    cuMemRelease(handle: u64) = release => "cuMemRelease" @ 10020;
    cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) = map => "cuMemMap" @ 10020;
    cuMemUnmap(address: u64, bytes: usize) = unmap => "cuMemUnmap" @ 10020;
    cuMemSetAccess(address: u64, bytes: usize, access: In<MemAccessDesc>, count: usize) = set_access => "cuMemSetAccess" @ 10020;
    cuMemGetAccess(flags: Out<u64>, place: In<MemLocation>, address: u64) = get_access => "cuMemGetAccess" @ 10020;
    cuMemExportToShareableHandle(out: Out<i32>, handle: u64, kind: u32, flags: u64) = export => "cuMemExportToShareableHandle" @ 10020;
    cuMemImportFromShareableHandle(out: Out<u64>, descriptor: usize, kind: u32) = import => "cuMemImportFromShareableHandle" @ 10020;
    cuMemRetainAllocationHandle(out: Out<u64>, address: u64) = retain => "cuMemRetainAllocationHandle" @ 11000;
    cuMemGetAllocationGranularity(out: Out<usize>, properties: In<MemAllocationProp>, option: u32) = get_granularity => "cuMemGetAllocationGranularity" @ 10020;
    cuMemGetAllocationPropertiesFromHandle(out: Out<MemAllocationProp>, handle: u64) = get_properties => "cuMemGetAllocationPropertiesFromHandle" @ 10020;
}

impl ProcessTables {
    pub(crate) fn physical(&mut self, handle: u64) -> Result<&mut ReferencedPhysical, CudaError> {
        self.virtual_memory
            .physical
            .get_mut(&handle)
            .ok_or(INVALID_VALUE)
    }

    /// The memory of a handle that the program still holds. A mapping alone is not enough.
    pub(crate) fn held(&mut self, handle: u64) -> Result<&mut ReferencedPhysical, CudaError> {
        self.physical(handle)
            .and_then(|physical| match physical.handles {
                0 => Err(INVALID_VALUE),
                _ => Ok(physical),
            })
    }

    pub(crate) fn forget_if_unused(&mut self, handle: u64) {
        if let Ok(physical) = self.physical(handle)
            && physical.handles == 0
            && physical.mappings == 0
        {
            self.virtual_memory.physical.remove(&handle);
        }
    }

    /// The mappings that exactly fill a range.
    fn mappings(
        &self,
        address: u64,
        bytes: u64,
    ) -> Result<Vec<(u64, MemoryRange, u64)>, CudaError> {
        let end = address
            .checked_add(bytes)
            .filter(|_| bytes > 0)
            .ok_or(INVALID_VALUE)?;
        let mut next = address;
        let mut found = Vec::new();
        for (&base, range) in self.ranges.range(address..end) {
            let MemoryKind::Mapped { handle, .. } = range.kind else {
                return Err(INVALID_VALUE);
            };
            if base != next {
                return Err(INVALID_VALUE);
            }
            next = base + range.bytes;
            found.push((base, *range, handle));
        }
        if next == end {
            Ok(found)
        } else {
            Err(INVALID_VALUE)
        }
    }
}

fn granular(bytes: usize) -> Result<u64, CudaError> {
    let bytes = bytes as u64;
    if bytes > 0 && bytes.is_multiple_of(GRANULE) {
        Ok(bytes)
    } else {
        Err(INVALID_VALUE)
    }
}

fn reserve(out: Out<u64>, bytes: usize, alignment: usize, wish: u64, flags: u64) -> Outcome {
    out.check()?;
    let bytes = granular(bytes)?;
    let alignment = (alignment as u64).max(GRANULE);
    if flags != 0 || !alignment.is_power_of_two() {
        return Err(INVALID_VALUE);
    }
    let address = mapping::reserve(bytes, alignment, wish)?;
    tables().virtual_memory.reserved.insert(address, bytes);
    out.put(address)
}

fn free_addresses(address: u64, bytes: usize) -> Outcome {
    let bytes = bytes as u64;
    let mut tables = tables();
    let is_whole = tables.virtual_memory.reserved.get(&address) == Some(&bytes);
    if !is_whole
        || tables
            .ranges
            .range(address..address + bytes)
            .next()
            .is_some()
    {
        return Err(INVALID_VALUE);
    }
    tables.virtual_memory.reserved.remove(&address);
    drop(tables);
    mapping::unmap(address, bytes);
    Ok(())
}

fn check(properties: &MemAllocationProp) -> Result<MachineLocation, CudaError> {
    if properties.kind != PINNED || properties.handle_types & !DESCRIPTOR != 0 {
        return Err(INVALID_VALUE);
    }
    properties.place.location()
}

fn create(out: Out<u64>, bytes: usize, properties: In<MemAllocationProp>, flags: u64) -> Outcome {
    out.check()?;
    let properties = properties.get()?;
    let (location, bytes) = (check(&properties)?, granular(bytes)?);
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    let name = create_in_machine(MachineRequest::HandleCreate { location, bytes })?;
    let Ok(file) = memory_file::create(name, bytes) else {
        ask(MachineRequest::HandleRelease(name))?;
        return Err(OUT_OF_MEMORY);
    };
    let mut tables = tables();
    let handle = tables.fresh();
    let physical = ReferencedPhysical {
        name,
        file,
        bytes,
        properties,
        handles: 1,
        mappings: 0,
    };
    tables.virtual_memory.physical.insert(handle, physical);
    out.put(handle)
}

fn release(handle: u64) -> Outcome {
    if multicast::is_one(handle) {
        return multicast::end(handle);
    }
    let name = tables().held(handle)?.name;
    ask(MachineRequest::HandleRelease(name))?;
    let mut tables = tables();
    tables.held(handle)?.handles -= 1;
    tables.forget_if_unused(handle);
    Ok(())
}

fn map(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> Outcome {
    let bytes = granular(bytes)?;
    let end = address.checked_add(bytes).ok_or(INVALID_VALUE)?;
    let (name, fd, place) = {
        let mut tables = tables();
        let before = tables.virtual_memory.reserved.range(..=address).next_back();
        let is_reserved = before.is_some_and(|(base, room)| end <= base + room);
        let is_free =
            tables.range_of(address).is_err() && tables.ranges.range(address..end).next().is_none();
        let physical = tables.held(handle)?;
        let fits = offset == 0 && bytes <= physical.bytes && address.is_multiple_of(GRANULE);
        if flags != 0 || !fits || !is_reserved || !is_free {
            return Err(INVALID_VALUE);
        }
        (
            physical.name,
            physical.file.as_raw_fd(),
            physical.properties.place,
        )
    };
    ask(MachineRequest::Map(name))?;
    if mapping::place(address, bytes, fd).is_err() {
        ask(MachineRequest::Unmap(name))?;
        return Err(OUT_OF_MEMORY);
    }
    let mut tables = tables();
    tables.physical(handle)?.mappings += 1;
    let (serial, kind) = (tables.fresh(), MemoryKind::Mapped { handle, access: 0 });
    let range = MemoryRange {
        bytes,
        kind,
        device: place.device(),
        context: 0,
        serial,
    };
    tables.ranges.insert(address, range);
    Ok(())
}

/// Unmaps a range, which must consist of whole mappings. Fails if nothing is mapped there. XLA logs this failure when a
/// reservation of its vmm allocator ends after its mappings.
fn unmap(address: u64, bytes: usize) -> Outcome {
    let mappings = tables().mappings(address, bytes as u64)?;
    for (base, range, handle) in mappings {
        let_go(handle)?;
        mapping::clear(base, range.bytes)?;
        tables().ranges.remove(&base);
    }
    Ok(())
}

/// All devices share the process's page tables, so memory is accessible if any device may access it.
fn set_access(address: u64, bytes: usize, access: In<MemAccessDesc>, count: usize) -> Outcome {
    let mut flags = 0;
    for at in 0..count {
        flags |= access.at(at)?.checked()?.flags;
    }
    if count == 0 {
        return Err(INVALID_VALUE);
    }
    let mut tables = tables();
    for (base, mut range, handle) in tables.mappings(address, bytes as u64)? {
        mapping::protect(base, range.bytes, flags & READ != 0, flags == READ_WRITE)?;
        range.kind = MemoryKind::Mapped {
            handle,
            access: flags,
        };
        tables.ranges.insert(base, range);
    }
    Ok(())
}

fn get_access(flags: Out<u64>, place: In<MemLocation>, address: u64) -> Outcome {
    place.get()?.location()?;
    let range = tables().range_of(address)?.1;
    match range.kind {
        MemoryKind::Mapped { access, .. } => flags.put(u64::from(access)),
        _ => Err(INVALID_VALUE),
    }
}

fn export(out: Out<i32>, handle: u64, kind: u32, flags: u64) -> Outcome {
    out.check()?;
    if kind != DESCRIPTOR {
        return Err(NOT_SUPPORTED);
    }
    let mut tables = tables();
    let physical = tables.held(handle)?;
    if flags != 0 || physical.properties.handle_types & kind == 0 {
        return Err(INVALID_VALUE);
    }
    let (name, file) = (physical.name, physical.file.as_raw_fd());
    drop(tables);
    out.put(descriptor_of(name, file)?)
}

/// Imports memory. The descriptor still belongs to the caller.
fn import(out: Out<u64>, descriptor: usize, kind: u32) -> Outcome {
    out.check()?;
    if kind != DESCRIPTOR {
        return Err(NOT_SUPPORTED);
    }
    let fd = RawFd::try_from(descriptor).map_err(|_| INVALID_VALUE)?;
    let (name, file) = memory_file::open(fd)?;
    let MachineReply::Imported { location, bytes } = ask(MachineRequest::HandleImport(name))?
    else {
        return Err(UNKNOWN);
    };
    let place = place_of(location)?;
    let mut tables = tables();
    let known = tables
        .virtual_memory
        .physical
        .iter_mut()
        .find(|(_, known)| known.name == name);
    if let Some((handle, known)) = known {
        known.handles += 1;
        return out.put(*handle);
    }
    let handle = tables.fresh();
    let properties = MemAllocationProp {
        kind: PINNED,
        handle_types: DESCRIPTOR,
        place,
        metadata: 0,
        compression: 0,
        is_rdma_capable: 0,
        usage: 0,
        reserved: [0; 4],
    };
    let physical = ReferencedPhysical {
        name,
        file,
        bytes,
        properties,
        handles: 1,
        mappings: 0,
    };
    tables.virtual_memory.physical.insert(handle, physical);
    out.put(handle)
}

fn retain(out: Out<u64>, address: u64) -> Outcome {
    out.check()?;
    let range = tables().range_of(address)?.1;
    let MemoryKind::Mapped { handle, .. } = range.kind else {
        return Err(INVALID_VALUE);
    };
    let name = tables().physical(handle)?.name;
    ask(MachineRequest::HandleRetain(name))?;
    tables().physical(handle)?.handles += 1;
    out.put(handle)
}

fn get_granularity(out: Out<usize>, properties: In<MemAllocationProp>, option: u32) -> Outcome {
    check(&properties.get()?)?;
    if option > 1 {
        Err(INVALID_VALUE)
    } else {
        out.put(GRANULE as usize)
    }
}

fn get_properties(out: Out<MemAllocationProp>, handle: u64) -> Outcome {
    out.put(tables().held(handle)?.properties)
}

/// The location of memory. It may be a card that the process does not see.
fn place_of(location: MachineLocation) -> Result<MemLocation, CudaError> {
    let MachineLocation::Card(card) = location else {
        return Ok(MemLocation { kind: HOST, id: 0 });
    };
    let driver = driver()?;
    let mut devices = 0..i32::try_from(driver.count()).unwrap_or(i32::MAX);
    let device = devices.find(|device| driver.card(*device) == Ok(card));
    device
        .map(MemLocation::of_device)
        .ok_or(crate::error::INVALID_DEVICE)
}
