//! Plain, pitched and managed memory.
//!
//! Managed memory is charged in full, although it is on the card only while it is used there. A program on a smaller
//! card could not have all of it resident either, and its residence cannot be observed.

use apportion_abi::account::ApiFamily;
use apportion_gate::{FreeTarget, HeldMemory, PoolSettlement, worst_case};

use crate::driver;
use crate::foreign::{DevicePointer, OUT_OF_MEMORY, SUCCESS, Status};
use crate::process::{self, ChargeScope, ChargeTarget, ProcessState};

/// Pitched rows are a multiple of this. If the driver pads more, the difference is charged afterwards.
const PITCH: u64 = 512;

type Alloc = unsafe extern "C" fn(*mut DevicePointer, usize) -> Status;
type AllocV1 = unsafe extern "C" fn(*mut u32, u32) -> Status;
type AllocManaged = unsafe extern "C" fn(*mut DevicePointer, usize, u32) -> Status;
type AllocPitch = unsafe extern "C" fn(*mut DevicePointer, *mut usize, usize, usize, u32) -> Status;
type AllocPitchV1 = unsafe extern "C" fn(*mut u32, *mut u32, u32, u32, u32) -> Status;
type Free = unsafe extern "C" fn(DevicePointer) -> Status;
type FreeV1 = unsafe extern "C" fn(u32) -> Status;

/// What the driver allocated.
struct NewAllocation<T> {
    address: u64,
    bytes: u64,
    /// What the driver wrote into the caller's variables.
    written: T,
}

/// Charges `bytes`, calls `ask`, and records the allocation. `Err` is the status for the program.
fn take<T>(
    site: ChargeTarget,
    api: ApiFamily,
    bytes: u64,
    ask: impl FnOnce() -> Result<NewAllocation<T>, Status>,
) -> Result<T, Status> {
    let charged = worst_case(bytes);
    if !site.process.charge_for(api, site.card, charged) {
        return Err(site.process.refusal(site.card, bytes, || match ask() {
            Err(status) => status,
            // Managed memory may be larger than the card.
            Ok(given) => {
                // SAFETY: the driver just returned it, and nobody else knows it.
                let _ = unsafe { driver::mem_free(given.address) };
                SUCCESS
            }
        }));
    }
    match ask() {
        Err(status) => {
            site.process.uncharge(site.card, charged);
            Err(status)
        }
        Ok(given) => {
            let cost = {
                let mut allocations = site.process.allocations.lock();
                allocations.enter(given.address, given.bytes, site.card, site.context)
            };
            site.process.adjust(site.card, charged, cost);
            Ok(given.written)
        }
    }
}

/// Removes the record, calls `ask`, and takes the charge off. For pool memory, `settle` does that.
pub(super) fn give(
    address: u64,
    ask: impl FnOnce() -> Status,
    settle: impl FnOnce(&ProcessState, PoolSettlement),
) -> Status {
    let Some(process) = process::current() else {
        return ask();
    };
    let Some(held) = process.allocations.lock().take(address) else {
        let status = ask();
        if status == SUCCESS {
            super::graph::freed(process, address);
        }
        return status;
    };
    let status = ask();
    match (held, status) {
        (FreeTarget::Linear(taken), SUCCESS) => {
            let memory = HeldMemory::Linear(taken.address);
            if !super::exported_descriptors::keep(process, memory, (taken.card, taken.cost)) {
                super::shared_holds::leave(process, memory);
                process.uncharge(taken.card, taken.cost);
            }
        }
        (FreeTarget::Linear(taken), _) => {
            let cost = {
                let mut allocations = process.allocations.lock();
                allocations.enter(taken.address, taken.bytes, taken.card, taken.context)
            };
            process.adjust(taken.card, taken.cost, cost);
        }
        (FreeTarget::Pooled(pooled), SUCCESS) => {
            let settled = process.allocations.lock().pools.freed(pooled);
            settle(process, settled);
        }
        (FreeTarget::Pooled(pooled), _) => process.allocations.lock().pools.lives(pooled),
    }
    status
}

/// A plain or managed allocation. `ask` calls the driver's function with the given place for the address.
///
/// # Safety
/// `address` must be what the caller passed, and `ask` must write an address if it reports success.
unsafe fn allocate<A: Copy + Default + Into<u64>>(
    api: ApiFamily,
    address: *mut A,
    bytes: u64,
    ask: impl Fn(*mut A) -> Status,
) -> Status {
    let site = match process::charge_scope() {
        ChargeScope::Charged(site) if !address.is_null() && bytes > 0 => site,
        ChargeScope::Closed => return OUT_OF_MEMORY,
        ChargeScope::Charged(_) | ChargeScope::Free => return ask(address),
    };
    let taken = take(site, api, bytes, || {
        let mut given = A::default();
        match ask(&raw mut given) {
            SUCCESS => Ok(NewAllocation {
                address: given.into(),
                bytes,
                written: given,
            }),
            status => Err(status),
        }
    });
    match taken {
        Ok(given) => {
            // SAFETY: the caller passes a place for the address, as to the driver.
            unsafe { address.write(given) };
            SUCCESS
        }
        Err(status) => status,
    }
}

pub(crate) unsafe fn alloc(real: Alloc, address: *mut DevicePointer, bytes: usize) -> Status {
    // SAFETY: the size is the caller's, the place the caller's or a local variable.
    let ask = |place| unsafe { real(place, bytes) };
    // SAFETY: the driver writes an address when it succeeds.
    unsafe { allocate(ApiFamily::Alloc, address, bytes as u64, ask) }
}

pub(crate) unsafe fn alloc_v1(real: AllocV1, address: *mut u32, bytes: u32) -> Status {
    // SAFETY: as for `alloc`.
    let ask = |place| unsafe { real(place, bytes) };
    // SAFETY: as for `alloc`.
    unsafe { allocate(ApiFamily::Alloc, address, u64::from(bytes), ask) }
}

pub(crate) unsafe fn alloc_managed(
    real: AllocManaged,
    address: *mut DevicePointer,
    bytes: usize,
    flags: u32,
) -> Status {
    // SAFETY: as for `alloc`.
    let ask = |place| unsafe { real(place, bytes, flags) };
    // SAFETY: as for `alloc`.
    unsafe { allocate(ApiFamily::Managed, address, bytes as u64, ask) }
}

/// The charge for rows of this width before their pitch is known.
fn estimate(width: u64, height: u64) -> u64 {
    width
        .checked_next_multiple_of(PITCH)
        .map_or(u64::MAX, |row| row.saturating_mul(height))
}

/// A pitched allocation, like [`allocate`].
///
/// # Safety
/// `address` and `pitch` must be what the caller passed, and `ask` must write both if it reports success.
unsafe fn allocate_rows<A: Copy + Default + Into<u64>, P: Copy + Default>(
    address: *mut A,
    pitch: *mut P,
    width: u64,
    height: u64,
    bytes_of: impl Fn(P) -> u64,
    ask: impl Fn(*mut A, *mut P) -> Status,
) -> Status {
    let valid = !address.is_null() && !pitch.is_null() && width > 0 && height > 0;
    let site = match process::charge_scope() {
        ChargeScope::Charged(site) if valid => site,
        ChargeScope::Closed => return OUT_OF_MEMORY,
        ChargeScope::Charged(_) | ChargeScope::Free => return ask(address, pitch),
    };
    let taken = take(site, ApiFamily::Alloc, estimate(width, height), || {
        let (mut given, mut row) = (A::default(), P::default());
        match ask(&raw mut given, &raw mut row) {
            SUCCESS => Ok(NewAllocation {
                address: given.into(),
                bytes: bytes_of(row).saturating_mul(height),
                written: (given, row),
            }),
            status => Err(status),
        }
    });
    match taken {
        Ok((given, row)) => {
            // SAFETY: the caller passes a place for the address, as to the driver.
            unsafe { address.write(given) };
            // SAFETY: the caller also passes a place for the pitch.
            unsafe { pitch.write(row) };
            SUCCESS
        }
        Err(status) => status,
    }
}

pub(crate) unsafe fn alloc_pitch(
    real: AllocPitch,
    address: *mut DevicePointer,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> Status {
    // SAFETY: the sizes are the caller's, the places the caller's or local variables.
    let ask = |address, pitch| unsafe { real(address, pitch, width, height, element) };
    let (width, height) = (width as u64, height as u64);
    // SAFETY: the driver writes both when it succeeds.
    unsafe { allocate_rows(address, pitch, width, height, |row| row as u64, ask) }
}

pub(crate) unsafe fn alloc_pitch_v1(
    real: AllocPitchV1,
    address: *mut u32,
    pitch: *mut u32,
    width: u32,
    height: u32,
    element: u32,
) -> Status {
    // SAFETY: as for `alloc_pitch`.
    let ask = |address, pitch| unsafe { real(address, pitch, width, height, element) };
    let (width, height) = (u64::from(width), u64::from(height));
    // SAFETY: as for `alloc_pitch`.
    unsafe { allocate_rows(address, pitch, width, height, u64::from, ask) }
}

pub(crate) unsafe fn free(real: Free, address: DevicePointer) -> Status {
    // SAFETY: the address is the caller's own.
    let status = give(address, || unsafe { real(address) }, ProcessState::settle);
    super::pool_settlement::settle_all();
    status
}

pub(crate) unsafe fn free_v1(real: FreeV1, address: u32) -> Status {
    // SAFETY: the address is the caller's own.
    give(
        u64::from(address),
        || unsafe { real(address) },
        ProcessState::settle,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_charged_with_its_padding() {
        assert_eq!(estimate(1, 3), 3 * PITCH);
        assert_eq!(estimate(u64::MAX, 2), u64::MAX);
    }
}
