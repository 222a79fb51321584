//! What holds physical memory besides handles and mapped addresses: sparse arrays (tile by tile), multicast objects
//! and logical endpoints. The memory was charged when it was created, and stays charged while any of them holds it.
//!
//! Tiles change in stream order. So memory that a tile drops is uncharged when the stream gets there.
//!
//! # Decision: a shared multicast object keeps what is bound
//! It ends when the last process releases it, which this process cannot see. So what this process bound to an object
//! that it exported or imported stays charged until it unbinds the memory (as NCCL and PyTorch do) or ends.

use apportion_gate::{
    BindingHolder, BindingRegion, Card, PhysicalName, PoolSettlement, ProcessAllocations,
};

use crate::driver;
use crate::foreign::{ArrayMap, Device, DevicePointer, Handle, Opaque, SUCCESS, Status, Stream};
use crate::process::{self, ProcessState};

use super::deferred_free;
use super::physical_memory::{give_back, give_back_with, let_go_of};

type MapArray = unsafe extern "C" fn(*const ArrayMap, u32, Stream) -> Status;
type Create = unsafe extern "C" fn(*mut Handle, Opaque) -> Status;
type Bind = unsafe extern "C" fn(Handle, usize, Handle, usize, usize, u64) -> Status;
type BindOn = unsafe extern "C" fn(Handle, Device, usize, Handle, usize, usize, u64) -> Status;
type BindAddress = unsafe extern "C" fn(Handle, usize, DevicePointer, usize, u64) -> Status;
type BindAddressOn =
    unsafe extern "C" fn(Handle, Device, usize, DevicePointer, usize, u64) -> Status;
type Unbind = unsafe extern "C" fn(Handle, Device, usize, usize) -> Status;
type BindToEndpoint = unsafe extern "C" fn(u32, Device, usize, Handle, usize, usize, u64) -> Status;
type BindAddressToEndpoint =
    unsafe extern "C" fn(u32, Device, usize, DevicePointer, usize, u64) -> Status;
type UnbindFromEndpoint = unsafe extern "C" fn(u32, Device, usize, usize) -> Status;
type DestroyEndpoint = unsafe extern "C" fn(u32) -> Status;

/// `CU_MEM_OPERATION_TYPE_MAP`.
const MAP: u32 = 1;

/// Records that a tile was mapped, in place of what was there before, or unmapped.
fn move_tile(process: &ProcessState, tile: &ArrayMap, stream: Stream) {
    let (holder, place) = (BindingHolder::Array(tile.array), tile.place());
    let context = driver::context_of(stream).or_else(driver::current_context);
    let next = || {
        let mut allocations = process.allocations.lock();
        let context = context.and_then(|context| allocations.context(context as u64));
        match tile.operation {
            MAP => {
                let (id, _) = allocations.memory_of(PhysicalName::Handle(tile.handle))?;
                allocations.hold(holder, place, context.map(|(id, _)| id), id)
            }
            _ => allocations.let_go(holder, place),
        }
    };
    while let Some(dropped) = next() {
        give_back_with(process, dropped, |card, bytes| {
            deferred_free::settle(process, PoolSettlement::GiveBack(card, bytes), stream);
        });
        if tile.operation == MAP {
            return;
        }
    }
}

pub(crate) unsafe fn map_array(
    real: MapArray,
    tiles: *const ArrayMap,
    count: u32,
    stream: Stream,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(tiles, count, stream) };
    let Some(process) = process::limited().filter(|_| status == SUCCESS && !tiles.is_null()) else {
        return status;
    };
    // SAFETY: the driver has read this many.
    let tiles = unsafe { core::slice::from_raw_parts(tiles, count as usize) };
    for tile in tiles {
        move_tile(process, tile, stream);
    }
    status
}

pub(crate) unsafe fn create_multicast(
    real: Create,
    object: *mut Handle,
    properties: Opaque,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(object, properties) };
    if status == SUCCESS
        && let Some(process) = process::limited()
        // SAFETY: the driver accepted the pointer and wrote the handle.
        && let Some(object) = unsafe { object.as_ref() }
    {
        process.allocations.lock().create_handle(*object, None);
    }
    status
}

/// A range of an object, on a card if that is known.
fn range(card: Option<Card>, offset: usize, bytes: usize) -> BindingRegion {
    let card = card.and_then(|card| u32::try_from(card).ok());
    BindingRegion {
        plane: [card.map_or(0, |card| card.saturating_add(1)), 0, 0],
        start: [offset as u64, 0, 0],
        extent: [bytes as u64, 0, 0],
    }
}

/// An object to which memory is bound.
#[derive(Clone, Copy)]
enum BindTarget {
    Multicast(Handle),
    Endpoint(u32),
}

impl BindTarget {
    fn holder(self, allocations: &mut ProcessAllocations) -> Option<BindingHolder> {
        match self {
            Self::Multicast(handle) => allocations.multicast(handle),
            Self::Endpoint(number) => Some(BindingHolder::Endpoint(number)),
        }
    }
}

/// Records memory as bound, on the named device or else on the memory's own. Pool memory is not recorded here: it is
/// charged for as long as the pool reserves it.
fn bound(
    status: Status,
    object: BindTarget,
    memory: PhysicalName,
    device: Option<Device>,
    offset: usize,
    bytes: usize,
) -> Status {
    let Some(process) = process::limited().filter(|_| status == SUCCESS) else {
        return status;
    };
    let card = device.and_then(|device| process.card_of(device));
    let dropped = {
        let mut allocations = process.allocations.lock();
        let found = allocations
            .memory_of(memory)
            .zip(object.holder(&mut allocations));
        found.and_then(|((id, charged), holder)| {
            let card = card.or(charged.map(|(card, _)| card));
            allocations.hold(holder, range(card, offset, bytes), None, id)
        })
    };
    if let Some(dropped) = dropped {
        give_back(process, dropped);
    }
    status
}

/// Records a range as unbound. A range that was bound without a card may be recorded without one.
fn unbound(
    status: Status,
    object: BindTarget,
    device: Device,
    offset: usize,
    bytes: usize,
) -> Status {
    let Some(process) = process::limited().filter(|_| status == SUCCESS) else {
        return status;
    };
    let card = process.card_of(device);
    let next = || {
        let mut allocations = process.allocations.lock();
        let holder = object.holder(&mut allocations)?;
        let dropped = allocations.let_go(holder, range(card, offset, bytes));
        dropped.or_else(|| allocations.let_go(holder, range(None, offset, bytes)))
    };
    while let Some(dropped) = next() {
        give_back(process, dropped);
    }
    status
}

pub(crate) unsafe fn bind(
    real: Bind,
    object: Handle,
    offset: usize,
    handle: Handle,
    at: usize,
    bytes: usize,
    flags: u64,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(object, offset, handle, at, bytes, flags) };
    let (object, memory) = (BindTarget::Multicast(object), PhysicalName::Handle(handle));
    bound(status, object, memory, None, offset, bytes)
}

#[expect(clippy::too_many_arguments, reason = "the driver's own signature")]
pub(crate) unsafe fn bind_on(
    real: BindOn,
    object: Handle,
    device: Device,
    offset: usize,
    handle: Handle,
    at: usize,
    bytes: usize,
    flags: u64,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(object, device, offset, handle, at, bytes, flags) };
    let (object, memory) = (BindTarget::Multicast(object), PhysicalName::Handle(handle));
    bound(status, object, memory, Some(device), offset, bytes)
}

pub(crate) unsafe fn bind_address(
    real: BindAddress,
    object: Handle,
    offset: usize,
    address: DevicePointer,
    bytes: usize,
    flags: u64,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(object, offset, address, bytes, flags) };
    let (object, memory) = (BindTarget::Multicast(object), PhysicalName::At(address));
    bound(status, object, memory, None, offset, bytes)
}

pub(crate) unsafe fn bind_address_on(
    real: BindAddressOn,
    object: Handle,
    device: Device,
    offset: usize,
    address: DevicePointer,
    bytes: usize,
    flags: u64,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(object, device, offset, address, bytes, flags) };
    let (object, memory) = (BindTarget::Multicast(object), PhysicalName::At(address));
    bound(status, object, memory, Some(device), offset, bytes)
}

pub(crate) unsafe fn unbind(
    real: Unbind,
    object: Handle,
    device: Device,
    offset: usize,
    bytes: usize,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(object, device, offset, bytes) };
    unbound(status, BindTarget::Multicast(object), device, offset, bytes)
}

#[expect(clippy::too_many_arguments, reason = "the driver's own signature")]
pub(crate) unsafe fn bind_to_endpoint(
    real: BindToEndpoint,
    endpoint: u32,
    device: Device,
    offset: usize,
    handle: Handle,
    at: usize,
    bytes: usize,
    flags: u64,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(endpoint, device, offset, handle, at, bytes, flags) };
    let (object, memory) = (BindTarget::Endpoint(endpoint), PhysicalName::Handle(handle));
    bound(status, object, memory, Some(device), offset, bytes)
}

pub(crate) unsafe fn bind_address_to_endpoint(
    real: BindAddressToEndpoint,
    endpoint: u32,
    device: Device,
    offset: usize,
    address: DevicePointer,
    bytes: usize,
    flags: u64,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(endpoint, device, offset, address, bytes, flags) };
    let (object, memory) = (BindTarget::Endpoint(endpoint), PhysicalName::At(address));
    bound(status, object, memory, Some(device), offset, bytes)
}

pub(crate) unsafe fn unbind_from_endpoint(
    real: UnbindFromEndpoint,
    endpoint: u32,
    device: Device,
    offset: usize,
    bytes: usize,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(endpoint, device, offset, bytes) };
    unbound(
        status,
        BindTarget::Endpoint(endpoint),
        device,
        offset,
        bytes,
    )
}

/// This process's bindings to the endpoint end, even if other processes still use it.
pub(crate) unsafe fn destroy_endpoint(real: DestroyEndpoint, endpoint: u32) -> Status {
    // SAFETY: the argument is only a number.
    let status = unsafe { real(endpoint) };
    if status == SUCCESS
        && let Some(process) = process::limited()
    {
        let_go_of(process, BindingHolder::Endpoint(endpoint));
    }
    status
}
