//! Virtual memory: physical memory is charged when it is created, and uncharged with its last handle and mapping.
//!
//! It is charged on the card of its location, whatever context is current, and not at all if the location is the
//! host. Reserving addresses costs nothing. `bindings` covers what else holds memory. An imported handle is tracked
//! like our own, but the process that made it pays; see `shared_memory`.

use apportion_abi::account::ApiFamily;

use crate::driver;
use crate::foreign::{AllocationProperties, DevicePointer, Handle, Opaque, SUCCESS, Status};
use crate::process;

use super::physical_memory::give_back;

type Create = unsafe extern "C" fn(*mut Handle, usize, *const AllocationProperties, u64) -> Status;
type Release = unsafe extern "C" fn(Handle) -> Status;
type Map = unsafe extern "C" fn(DevicePointer, usize, usize, Handle, u64) -> Status;
type Unmap = unsafe extern "C" fn(DevicePointer, usize) -> Status;
type Retain = unsafe extern "C" fn(*mut Handle, Opaque) -> Status;

pub(crate) unsafe fn create(
    real: Create,
    handle: *mut Handle,
    bytes: usize,
    properties: *const AllocationProperties,
    flags: u64,
) -> Status {
    // SAFETY: the arguments are the caller's, the place the caller's or a local variable.
    let ask = |place| unsafe { real(place, bytes, properties, flags) };
    // SAFETY: the caller passes the properties, or null, as to the driver.
    let device = unsafe { properties.as_ref() }.and_then(|all| all.location.device());
    let process = match process::to_charge() {
        Ok(process) => process,
        Err(_) if device.is_none() => return ask(handle),
        Err(refused) => return refused,
    };
    if process.account().is_none() || handle.is_null() {
        return ask(handle);
    }
    let card = device.and_then(|device| process.card_of(device));
    let charged = card.map(|card| (card, bytes as u64));
    if let Some((card, bytes)) = charged
        && !process.charge_for(ApiFamily::Virtual, card, bytes)
    {
        return process.refusal(card, bytes, || {
            let mut created = 0;
            let status = ask(&raw mut created);
            if status == SUCCESS {
                // SAFETY: it was just created, and nobody else knows it.
                let _ = unsafe { driver::mem_release(created) };
            }
            status
        });
    }
    let mut created = 0;
    let status = ask(&raw mut created);
    if status != SUCCESS {
        if let Some((card, bytes)) = charged {
            process.uncharge(card, bytes);
        }
        return status;
    }
    process.allocations.lock().create_handle(created, charged);
    // SAFETY: the caller passes a place for the handle, as to the driver.
    unsafe { handle.write(created) };
    status
}

pub(crate) unsafe fn release(real: Release, handle: Handle) -> Status {
    // SAFETY: the handle is the caller's own.
    let ask = || unsafe { real(handle) };
    let Some(process) = process::limited() else {
        return ask();
    };
    let Some(released) = process.allocations.lock().release_handle(handle) else {
        return ask();
    };
    let status = ask();
    if status != SUCCESS {
        process.allocations.lock().handle_lives(released);
        return status;
    }
    let dropped = process.allocations.lock().handle_released(released);
    give_back(process, dropped);
    status
}

pub(crate) unsafe fn map(
    real: Map,
    address: DevicePointer,
    bytes: usize,
    offset: usize,
    handle: Handle,
    flags: u64,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(address, bytes, offset, handle, flags) };
    if status == SUCCESS
        && let Some(process) = process::limited()
    {
        process
            .allocations
            .lock()
            .map(address, bytes as u64, handle);
    }
    status
}

/// Removes the records of a range's mappings one by one, and restores all if the driver keeps the mappings.
pub(crate) unsafe fn unmap(real: Unmap, address: DevicePointer, bytes: usize) -> Status {
    // SAFETY: the arguments are the caller's own.
    let ask = || unsafe { real(address, bytes) };
    let Some(process) = process::limited() else {
        return ask();
    };
    let taken = process.allocations.lock().unmap(address, bytes as u64);
    let status = ask();
    let Some(first) = taken else {
        return status;
    };
    if status != SUCCESS {
        process.allocations.lock().mapping_lives(first);
        return status;
    }
    let mut next = Some(first);
    while let Some(unmapped) = next {
        let dropped = process.allocations.lock().unmapped(unmapped);
        give_back(process, dropped);
        next = process.allocations.lock().unmap(address, bytes as u64);
    }
    status
}

pub(crate) unsafe fn retain(real: Retain, handle: *mut Handle, address: Opaque) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(handle, address) };
    if status == SUCCESS
        && let Some(process) = process::limited()
        // SAFETY: the driver accepted the pointer and wrote the handle.
        && let Some(handle) = unsafe { handle.as_ref() }
    {
        process
            .allocations
            .lock()
            .retain_handle(*handle, address as u64);
    }
    status
}
