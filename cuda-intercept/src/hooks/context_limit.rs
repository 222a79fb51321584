//! Context limits that take memory: an increase above a context's initial value is charged before the driver call.
//!
//! The driver may allocate only at the next launch, and may round. The charge that stays is for the value that the
//! driver reports afterwards.

use crate::driver;
use crate::foreign::{Device, OUT_OF_MEMORY, SUCCESS, Status};
use crate::process::{self, ChargeScope};

type Set = unsafe extern "C" fn(u32, usize) -> Status;

/// `CU_LIMIT_STACK_SIZE`, `CU_LIMIT_PRINTF_FIFO_SIZE`, `CU_LIMIT_MALLOC_HEAP_SIZE`.
pub(super) const STACK: u32 = 0;
const PRINTF: u32 = 1;
const HEAP: u32 = 2;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`, `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR`.
const MULTIPROCESSORS: u32 = 16;
const THREADS: u32 = 39;

/// The bytes for one unit of a limit. `None` for a limit that takes nothing, or of which the cost is unknown (those
/// of the device runtime). A stack exists for every thread that the card can run at once.
pub(super) fn unit(limit: u32, device: Device) -> Option<u64> {
    match limit {
        PRINTF | HEAP => Some(1),
        STACK => {
            let of = |attribute| driver::attribute(attribute, device);
            Some(of(MULTIPROCESSORS)?.saturating_mul(of(THREADS)?))
        }
        _ => None,
    }
}

pub(crate) unsafe fn set(real: Set, limit: u32, value: usize) -> Status {
    // SAFETY: the arguments are only numbers.
    let ask = || unsafe { real(limit, value) };
    let site = match process::charge_scope() {
        ChargeScope::Charged(site) => site,
        ChargeScope::Closed | ChargeScope::Free => return ask(),
    };
    let Some((unit, now)) = driver::current_device()
        .and_then(|device| unit(limit, device))
        .zip(driver::limit(limit))
    else {
        return ask();
    };
    let (process, key) = (site.process, (site.context, limit));
    let value = value as u64;
    let more = process
        .allocations
        .lock()
        .settings
        .more(key, now, value, unit);
    if more > 0 && !process.charge(site.card, more) {
        return OUT_OF_MEMORY;
    }
    let status = ask();
    if status != SUCCESS {
        process.uncharge(site.card, more);
        return status;
    }
    let stands = driver::limit(limit).unwrap_or(value);
    let (before, after) = process
        .allocations
        .lock()
        .settings
        .set(key, now, stands, unit);
    process.adjust(site.card, before.saturating_add(more), after);
    status
}
