//! Stream-ordered allocation and its memory pools.

use std::collections::HashMap;

use apportion_sim_machine::{MachineReply, MachineRequest, PoolAttribute};

use crate::capture::captured;
use crate::driver::{ask, create as create_in_machine, driver, tables};
use crate::error::{CudaError, INVALID_VALUE, Outcome, UNKNOWN};
use crate::executables;
use crate::export::exports;
use crate::graphs;
use crate::location::{MemAccessDesc, MemLocation, READ_WRITE};
use crate::mapping;
use crate::memory::{enter_allocation, free_allocation};
use crate::pointer::{In, Out};
use crate::stream::{device_of, stream};
use crate::tables::MemoryKind;

/// The pools of a process.
#[derive(Debug, Default)]
pub(crate) struct MemoryPools {
    by_handle: HashMap<u64, MemoryPool>,
    defaults: HashMap<i32, u64>,
    current: HashMap<i32, u64>,
}

/// A pool. The machine forgets a default pool with the last context of its device, but the program keeps its handle. So
/// a default pool has no machine name until it is needed again.
#[derive(Debug, Clone)]
struct MemoryPool {
    name: Option<u64>,
    place: MemLocation,
    is_default: bool,
    reuse: [i32; 3],
    access: HashMap<i32, u32>,
}

/// `CUmemPoolProps`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct MemPoolProps {
    kind: u32,
    handle_types: u32,
    place: MemLocation,
    security: u64,
    max_bytes: usize,
    usage: u16,
    is_rdma_capable: u8,
    reserved: [u8; 53],
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED` and `_MANAGED`.
const KINDS: [u32; 2] = [1, 2];

exports! {
    cuDeviceGetDefaultMemPool(out: Out<u64>, device: i32) = get_default => "cuDeviceGetDefaultMemPool" @ 11020;
    cuDeviceGetMemPool(out: Out<u64>, device: i32) = get_current => "cuDeviceGetMemPool" @ 11020;
    cuDeviceSetMemPool(device: i32, pool: u64) = set_current => "cuDeviceSetMemPool" @ 11020;
    cuMemGetDefaultMemPool(out: Out<u64>, place: In<MemLocation>, kind: u32) = get_default_at => "cuMemGetDefaultMemPool" @ 13000;
    cuMemGetMemPool(out: Out<u64>, place: In<MemLocation>, kind: u32) = get_current_at => "cuMemGetMemPool" @ 13000;
    cuMemSetMemPool(place: In<MemLocation>, kind: u32, pool: u64) = set_current_at => "cuMemSetMemPool" @ 13000;
    cuMemPoolCreate(out: Out<u64>, properties: In<MemPoolProps>) = create => "cuMemPoolCreate" @ 11020;
    cuMemPoolDestroy(pool: u64) = destroy => "cuMemPoolDestroy" @ 11020;
    cuMemPoolGetAttribute(pool: u64, attribute: u32, value: Out<u64>) = get_attribute => "cuMemPoolGetAttribute" @ 11020;
    cuMemPoolSetAttribute(pool: u64, attribute: u32, value: In<u64>) = set_attribute => "cuMemPoolSetAttribute" @ 11020;
    cuMemPoolTrimTo(pool: u64, keep: usize) = trim => "cuMemPoolTrimTo" @ 11020;
    cuMemPoolSetAccess(pool: u64, access: In<MemAccessDesc>, count: usize) = set_access => "cuMemPoolSetAccess" @ 11020;
    cuMemPoolGetAccess(flags: Out<u32>, pool: u64, place: In<MemLocation>) = get_access => "cuMemPoolGetAccess" @ 11020;
    cuMemAllocAsync(out: Out<u64>, bytes: usize, stream: u64) = allocate => "cuMemAllocAsync" @ 11020 | cuMemAllocAsync_ptsz @ 11020;
    cuMemAllocFromPoolAsync(out: Out<u64>, bytes: usize, pool: u64, stream: u64) = allocate_from => "cuMemAllocFromPoolAsync" @ 11020 | cuMemAllocFromPoolAsync_ptsz @ 11020;
    cuMemFreeAsync(address: u64, stream: u64) = free => "cuMemFreeAsync" @ 11020 | cuMemFreeAsync_ptsz @ 11020;
}

impl MemoryPools {
    /// Clears the machine names of default pools. The machine has forgotten these pools with the last context.
    pub(crate) fn forget_names(&mut self) {
        for pool in self.by_handle.values_mut().filter(|pool| pool.is_default) {
            pool.name = None;
        }
    }

    fn pool(&self, handle: u64) -> Result<&MemoryPool, CudaError> {
        self.by_handle.get(&handle).ok_or(INVALID_VALUE)
    }

    fn pool_mut(&mut self, handle: u64) -> Result<&mut MemoryPool, CudaError> {
        self.by_handle.get_mut(&handle).ok_or(INVALID_VALUE)
    }
}

impl MemPoolProps {
    /// The properties of a pool of pinned memory at a location.
    pub(crate) fn at(place: MemLocation) -> Self {
        Self {
            kind: KINDS[0],
            handle_types: 0,
            place,
            security: 0,
            max_bytes: 0,
            usage: 0,
            is_rdma_capable: 0,
            reserved: [0; 53],
        }
    }

    /// The device that the pool's memory is on.
    pub(crate) fn device(&self) -> Result<i32, CudaError> {
        self.place.location()?;
        Ok(self.place.device())
    }
}

impl MemoryPool {
    fn new(name: Option<u64>, place: MemLocation, is_default: bool) -> Self {
        Self {
            name,
            place,
            is_default,
            reuse: [1; 3],
            access: HashMap::new(),
        }
    }
}

/// The handle of a device's default pool.
fn default_of(device: i32) -> Result<u64, CudaError> {
    driver()?.card(device)?;
    let mut tables = tables();
    if let Some(handle) = tables.pools.defaults.get(&device) {
        return Ok(*handle);
    }
    let handle = tables.fresh();
    tables.pools.by_handle.insert(
        handle,
        MemoryPool::new(None, MemLocation::of_device(device), true),
    );
    tables.pools.defaults.insert(device, handle);
    Ok(handle)
}

fn current_of(device: i32) -> Result<u64, CudaError> {
    let default = default_of(device)?;
    Ok(tables()
        .pools
        .current
        .get(&device)
        .copied()
        .unwrap_or(default))
}

/// The machine's name of a pool.
fn name_of(handle: u64) -> Result<u64, CudaError> {
    let pool = tables().pools.pool(handle)?.clone();
    if let Some(name) = pool.name {
        return Ok(name);
    }
    let card = driver()?.card(pool.place.id)?;
    let name = create_in_machine(MachineRequest::DefaultPool(card))?;
    tables().pools.pool_mut(handle)?.name = Some(name);
    Ok(name)
}

fn get_default(out: Out<u64>, device: i32) -> Outcome {
    out.check()?;
    out.put(default_of(device)?)
}

fn get_current(out: Out<u64>, device: i32) -> Outcome {
    out.check()?;
    out.put(current_of(device)?)
}

fn set_current(device: i32, pool: u64) -> Outcome {
    driver()?.card(device)?;
    let mut tables = tables();
    if tables.pools.pool(pool)?.place != MemLocation::of_device(device) {
        return Err(INVALID_VALUE);
    }
    tables.pools.current.insert(device, pool);
    Ok(())
}

/// Only devices have default pools here.
fn device_at(place: In<MemLocation>, kind: u32) -> Result<i32, CudaError> {
    let place = place.get()?;
    place.location()?;
    if KINDS.contains(&kind) && place.device() >= 0 {
        Ok(place.id)
    } else {
        Err(INVALID_VALUE)
    }
}

fn get_default_at(out: Out<u64>, place: In<MemLocation>, kind: u32) -> Outcome {
    get_default(out, device_at(place, kind)?)
}

fn get_current_at(out: Out<u64>, place: In<MemLocation>, kind: u32) -> Outcome {
    get_current(out, device_at(place, kind)?)
}

fn set_current_at(place: In<MemLocation>, kind: u32, pool: u64) -> Outcome {
    set_current(device_at(place, kind)?, pool)
}

/// Creates a pool. Pools that other processes can import are not simulated, as the device attributes say.
fn create(out: Out<u64>, properties: In<MemPoolProps>) -> Outcome {
    out.check()?;
    let properties = properties.get()?;
    if !KINDS.contains(&properties.kind) || properties.handle_types != 0 {
        return Err(INVALID_VALUE);
    }
    let location = properties.place.location()?;
    let max_bytes = properties.max_bytes as u64;
    let name = create_in_machine(MachineRequest::PoolCreate {
        location,
        max_bytes,
    })?;
    let mut tables = tables();
    let handle = tables.fresh();
    tables
        .pools
        .by_handle
        .insert(handle, MemoryPool::new(Some(name), properties.place, false));
    out.put(handle)
}

fn destroy(handle: u64) -> Outcome {
    if tables().pools.pool(handle)?.is_default {
        return Err(INVALID_VALUE);
    }
    ask(MachineRequest::PoolDestroy(name_of(handle)?))?;
    let mut tables = tables();
    tables.pools.by_handle.remove(&handle);
    tables.pools.current.retain(|_, current| *current != handle);
    Ok(())
}

/// The `CU_MEMPOOL_ATTR_*` that the machine handles.
fn attribute(number: u32) -> Result<PoolAttribute, CudaError> {
    match number {
        4 => Ok(PoolAttribute::ReleaseThreshold),
        5 => Ok(PoolAttribute::Reserved),
        6 => Ok(PoolAttribute::ReservedHigh),
        7 => Ok(PoolAttribute::Used),
        8 => Ok(PoolAttribute::UsedHigh),
        13 => Ok(PoolAttribute::MaxBytes),
        _ => Err(INVALID_VALUE),
    }
}

/// Attributes 1 to 3 control the reuse of memory and have 32-bit values.
fn get_attribute(handle: u64, number: u32, value: Out<u64>) -> Outcome {
    value.check()?;
    if let 1..=3 = number {
        let reuse = tables().pools.pool(handle)?.reuse[number as usize - 1];
        return value.cast::<i32>().put(reuse);
    }
    let request = MachineRequest::PoolGet(name_of(handle)?, attribute(number)?);
    match ask(request)? {
        MachineReply::Value(current) => value.put(current),
        _ => Err(UNKNOWN),
    }
}

fn set_attribute(handle: u64, number: u32, value: In<u64>) -> Outcome {
    if let 1..=3 = number {
        let reuse = i32::from(value.cast::<i32>().get()? != 0);
        tables().pools.pool_mut(handle)?.reuse[number as usize - 1] = reuse;
        return Ok(());
    }
    let value = value.get()?;
    ask(MachineRequest::PoolSet(
        name_of(handle)?,
        attribute(number)?,
        value,
    ))?;
    tables().touch_pools();
    Ok(())
}

fn trim(handle: u64, keep: usize) -> Outcome {
    ask(MachineRequest::PoolTrim {
        pool: name_of(handle)?,
        keep: keep as u64,
    })
    .map(drop)
}

/// A device can always access its own pools.
fn set_access(handle: u64, access: In<MemAccessDesc>, count: usize) -> Outcome {
    for at in 0..count {
        let access = access.at(at)?.checked()?;
        let mut tables = tables();
        let pool = tables.pools.pool_mut(handle)?;
        if access.place == pool.place && access.flags != READ_WRITE {
            return Err(INVALID_VALUE);
        }
        pool.access.insert(access.place.device(), access.flags);
    }
    Ok(())
}

fn get_access(flags: Out<u32>, handle: u64, place: In<MemLocation>) -> Outcome {
    let place = place.get()?;
    place.location()?;
    let tables = tables();
    let pool = tables.pools.pool(handle)?;
    let granted = pool.access.get(&place.device()).copied().unwrap_or(0);
    flags.put(if place == pool.place {
        READ_WRITE
    } else {
        granted
    })
}

fn allocate(out: Out<u64>, bytes: usize, on: u64) -> Outcome {
    out.check()?;
    allocate_from(out, bytes, current_of(device_of(on)?)?, on)
}

fn allocate_from(out: Out<u64>, bytes: usize, handle: u64, on: u64) -> Outcome {
    out.check()?;
    stream(on)?;
    let bytes = bytes as u64;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let place = tables().pools.pool(handle)?.place;
    if let Some(to) = captured(on)? {
        let parameters = graphs::MemAllocNodeParams::new(place, bytes);
        return out.put(graphs::allocation(to, parameters)?.1);
    }
    let reply = ask(MachineRequest::PoolAllocate {
        pool: name_of(handle)?,
        bytes,
    })?;
    let device = place.device();
    let address = enter_allocation(
        &reply,
        bytes,
        0,
        device,
        |allocation| MemoryKind::Pooled {
            allocation,
            pool: handle,
        },
        mapping::lazy,
    )?;
    tables().touch_pools();
    out.put(address)
}

fn free(address: u64, on: u64) -> Outcome {
    stream(on)?;
    if address == 0 {
        return Ok(());
    }
    let range = tables()
        .ranges
        .get(&address)
        .copied()
        .ok_or(INVALID_VALUE)?;
    if let Some(to) = captured(on)? {
        return graphs::release(to, address).map(drop);
    }
    if range.kind == MemoryKind::Graph {
        return executables::free(address);
    }
    let MemoryKind::Pooled { allocation, .. } = range.kind else {
        return Err(INVALID_VALUE);
    };
    free_allocation(address, range, allocation)?;
    tables().touch_pools();
    Ok(())
}
