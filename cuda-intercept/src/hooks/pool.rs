//! Stream-ordered memory: a pool is charged for what it reserves.
//!
//! An allocation is first charged the most by which its pool can grow, and settled when the driver has answered.
//! Freed memory stays in the pool until the driver trims it. The next settlement sees that: at every call here, at
//! every synchronisation, and before a charge is refused. No stream is synchronised to find out.
//!
//! Allocations in a stream that is being captured become part of a graph, and cost nothing until the graph is
//! launched. The pool of a device's graphs is settled and trimmed like the program's pools.
//!
//! Close to the limit, this can refuse an allocation that fits into memory which the pool has reserved and cannot
//! trim, up to one step of the pool's growth. Only the driver knows whether the pool would grow, and the limit must
//! hold.

use apportion_abi::account::ApiFamily;
use apportion_gate::{Card, worst_growth};

use crate::driver::{self, PoolReading};
use crate::foreign::{
    Context, Device, DevicePointer, MemoryLocation, OUT_OF_MEMORY, Pool, PoolProperties, SUCCESS,
    Status, Stream,
};
use crate::process::{self, ChargeScope, ProcessState};
use crate::spin_lock;

use super::deferred_free;
use super::pool_settlement::{settle, settle_all};

type AllocAsync = unsafe extern "C" fn(*mut DevicePointer, usize, Stream) -> Status;
type AllocFromPool = unsafe extern "C" fn(*mut DevicePointer, usize, Pool, Stream) -> Status;
type FreeAsync = unsafe extern "C" fn(DevicePointer, Stream) -> Status;
type Create = unsafe extern "C" fn(*mut Pool, *const PoolProperties) -> Status;
type Destroy = unsafe extern "C" fn(Pool) -> Status;
type Trim = unsafe extern "C" fn(Pool, usize) -> Status;
type OfDevice = unsafe extern "C" fn(*mut Pool, Device) -> Status;
type AtLocation = unsafe extern "C" fn(*mut Pool, *const MemoryLocation, u32) -> Status;
type ContextSynchronize = unsafe extern "C" fn() -> Status;
type Synchronize = unsafe extern "C" fn(Context) -> Status;

/// Allocates from `pool`, which is on a card of the account.
fn allocate(
    process: &ProcessState,
    pool: u64,
    card: Card,
    bytes: usize,
    address: *mut DevicePointer,
    ask: impl Fn(*mut DevicePointer) -> Status,
) -> Status {
    let growth = worst_growth(bytes as u64);
    if !process.charge_for(ApiFamily::Pool, card, growth) {
        return process.refusal(card, bytes as u64, || {
            let mut given = 0;
            let status = ask(&raw mut given);
            if status == SUCCESS {
                // SAFETY: the driver just returned it, and nobody else knows it.
                let _ = unsafe { driver::mem_free(given) };
            }
            status
        });
    }
    let growth = {
        let mut allocations = process.allocations.lock();
        allocations.pools.enter(pool, Some(card));
        allocations.pools.begin(pool, growth)
    };
    let mut given = 0;
    let status = ask(&raw mut given);
    let made = (status == SUCCESS).then_some(given);
    settle(process, pool, growth);
    if let Some(growth) = growth {
        let settled = process.allocations.lock().pools.made(growth, made);
        process.settle(settled);
    }
    if status == SUCCESS {
        // SAFETY: the caller passes a place for the address, as to the driver.
        unsafe { address.write(given) };
    }
    status
}

/// The pool that a stream allocates from: the current one of its device.
fn pool_of(process: &ProcessState, stream: Stream) -> Option<(u64, Card)> {
    let device = device_of(process, stream)?;
    let card = process.card_of(device)?;
    let mut pool: Pool = core::ptr::null_mut();
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { driver::device_get_pool(&raw mut pool, device) }?;
    if status != SUCCESS {
        return None;
    }
    let mut allocations = process.allocations.lock();
    allocations.pools.enter(pool as u64, Some(card));
    let card = allocations.pools.card(pool as u64)??;
    Some((pool as u64, card))
}

/// The device of a stream: of its context for a named stream, the current device for the default streams.
fn device_of(process: &ProcessState, stream: Stream) -> Option<Device> {
    let current = driver::current_device();
    match driver::context_of(stream) {
        Some(context) if driver::current_context() != Some(context) => process
            .allocations
            .lock()
            .device_of(context as u64)
            .or(current),
        Some(_) | None => current,
    }
}

pub(crate) unsafe fn alloc_async(
    real: AllocAsync,
    address: *mut DevicePointer,
    bytes: usize,
    stream: Stream,
) -> Status {
    // SAFETY: the arguments are the caller's, the place the caller's or a local variable.
    let ask = |place| unsafe { real(place, bytes, stream) };
    let process = match process::charge_scope() {
        ChargeScope::Charged(site) if !address.is_null() && bytes > 0 => site.process,
        ChargeScope::Closed => return OUT_OF_MEMORY,
        ChargeScope::Charged(_) | ChargeScope::Free => return ask(address),
    };
    if driver::is_capturing(stream) {
        return ask(address);
    }
    match pool_of(process, stream) {
        Some((pool, card)) => allocate(process, pool, card, bytes, address, ask),
        None => ask(address),
    }
}

/// An unknown pool is a default pool that the program got in a way that is not hooked. It is assumed to be on the
/// stream's device, because imported pools cannot allocate.
pub(crate) unsafe fn alloc_from_pool(
    real: AllocFromPool,
    address: *mut DevicePointer,
    bytes: usize,
    pool: Pool,
    stream: Stream,
) -> Status {
    // SAFETY: the arguments are the caller's, the place the caller's or a local variable.
    let ask = |place| unsafe { real(place, bytes, pool, stream) };
    let process = match process::to_charge() {
        Ok(process) => process,
        Err(refused) => return refused,
    };
    let is_nothing = address.is_null() || bytes == 0 || pool.is_null();
    if process.account().is_none() || is_nothing {
        return ask(address);
    }
    let known = process.allocations.lock().pools.card(pool as u64);
    // A driver that is not initialised refuses without reading the handles, which may be invalid.
    if known.is_none() && !driver::is_started() || driver::is_capturing(stream) {
        return ask(address);
    }
    let card = known.unwrap_or_else(|| {
        let card = device_of(process, stream).and_then(|device| process.card_of(device));
        card.filter(|_| driver::pool_reserved(pool as u64) != PoolReading::NoPool)
    });
    match card {
        Some(card) => allocate(process, pool as u64, card, bytes, address, ask),
        None => ask(address),
    }
}

/// Frees pool memory or plain memory. The driver accepts both.
pub(crate) unsafe fn free_async(real: FreeAsync, address: DevicePointer, stream: Stream) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = super::linear::give(
        address,
        || unsafe { real(address, stream) },
        |process, settled| {
            deferred_free::settle(process, settled, stream);
        },
    );
    settle_all();
    status
}

pub(crate) unsafe fn create(
    real: Create,
    pool: *mut Pool,
    properties: *const PoolProperties,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(pool, properties) };
    // SAFETY: the driver accepted the properties.
    let device = unsafe { properties.as_ref() }.and_then(|all| all.location.device());
    if status == SUCCESS {
        // SAFETY: the driver accepted the pointer and wrote the pool.
        unsafe { enter(pool, device) };
    }
    status
}

/// # Safety
/// `pool` must be null or point to a pool that the driver wrote.
unsafe fn enter(pool: *const Pool, device: Option<Device>) {
    // SAFETY: the caller guarantees it.
    let Some(pool) = (unsafe { pool.as_ref() }) else {
        return;
    };
    if let Some(process) = process::current()
        && process.account().is_some()
    {
        let card = device.and_then(|device| process.card_of(device));
        process.allocations.lock().pools.enter(*pool as u64, card);
    }
}

pub(crate) unsafe fn of_device(real: OfDevice, pool: *mut Pool, device: Device) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(pool, device) };
    if status == SUCCESS {
        // SAFETY: the driver accepted the pointer and wrote the pool.
        unsafe { enter(pool, Some(device)) };
    }
    status
}

/// The pool of a location. A pool on the host is on no card and costs nothing.
pub(crate) unsafe fn at_location(
    real: AtLocation,
    pool: *mut Pool,
    location: *const MemoryLocation,
    kind: u32,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(pool, location, kind) };
    // SAFETY: the driver accepted the location.
    let device = unsafe { location.as_ref() }
        .copied()
        .and_then(MemoryLocation::device);
    if status == SUCCESS {
        // SAFETY: the driver accepted the pointer and wrote the pool.
        unsafe { enter(pool, device) };
    }
    status
}

/// The memory that live allocations keep in a destroyed pool stays charged until they are freed.
pub(crate) unsafe fn destroy(real: Destroy, pool: Pool) -> Status {
    // SAFETY: the pool is the caller's own.
    let ask = || unsafe { real(pool) };
    let Some(process) = process::current() else {
        return ask();
    };
    // This is the last chance to read what the pool reserves.
    settle(process, pool as u64, None);
    let begun = spin_lock::wait_for(|| {
        let mut allocations = process.allocations.lock();
        let is_free = !allocations.pools.is_settling(pool as u64);
        is_free.then(|| allocations.pools.begin_destroy(pool as u64))
    });
    // A thread that still reads after all that time was cancelled while it read.
    let begun =
        begun.unwrap_or_else(|| process.allocations.lock().pools.begin_destroy(pool as u64));
    let Some(doomed) = begun else {
        return ask();
    };
    let status = ask();
    if status == SUCCESS {
        let settled = process.allocations.lock().pools.destroyed(doomed);
        process.settle(settled);
    } else {
        process.allocations.lock().pools.survives(doomed);
    }
    status
}

pub(crate) unsafe fn trim(real: Trim, pool: Pool, keep: usize) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(pool, keep) };
    settle_all();
    status
}

pub(crate) unsafe fn context_synchronize(real: ContextSynchronize) -> Status {
    // SAFETY: there are no arguments.
    let status = unsafe { real() };
    settle_all();
    status
}

/// Synchronises a stream, an event or a context. This hook treats them alike.
pub(crate) unsafe fn synchronize(real: Synchronize, what: Context) -> Status {
    // SAFETY: the argument is the caller's own.
    let status = unsafe { real(what) };
    settle_all();
    status
}
