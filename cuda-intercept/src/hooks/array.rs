//! Arrays: charged by an estimate before the driver call, and by the driver's stated requirement afterwards.
//!
//! The estimate is the size of the elements; the driver decides about tiling and alignment. If they make the array
//! larger than the limit allows, it is destroyed again, and the program sees the same as on a full card. Sparse and
//! deferred arrays have no memory of their own. What is mapped into them is held (see `bindings`) until they are
//! destroyed.

use apportion_abi::account::ApiFamily;
use apportion_gate::{ArrayAllocation, BindingHolder, format_bytes, worst_case};

use crate::driver;
use crate::foreign::{
    ArrayExtent, ArrayRequirements, ArrayShape3d, DescribesArray, OUT_OF_MEMORY, Opaque, SUCCESS,
    Status,
};
use crate::process::{self, ChargeScope, ChargeTarget};

type Create<D> = unsafe extern "C" fn(*mut Opaque, *const D) -> Status;
type CreateMipmapped = unsafe extern "C" fn(*mut Opaque, *const ArrayShape3d, u32) -> Status;
type Destroy = unsafe extern "C" fn(Opaque) -> Status;

/// The kinds of arrays for which the driver has separate functions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ArrayKind {
    Plain,
    Mipmapped,
}

impl ArrayKind {
    fn destroy(self, array: Opaque) {
        let _ = match self {
            // SAFETY: the array was just created and nobody else knows it.
            Self::Plain => unsafe { driver::array_destroy(array) },
            // SAFETY: as above.
            Self::Mipmapped => unsafe { driver::mipmapped_destroy(array) },
        };
    }

    /// The memory that an array takes, according to the driver; `None` if the driver cannot say.
    fn requirement(self, array: Opaque) -> Option<u64> {
        let device = driver::current_device()?;
        let mut requirement = ArrayRequirements::default();
        let place = &raw mut requirement;
        let status = match self {
            // SAFETY: the array was just created, the pointer is to a local variable.
            Self::Plain => unsafe { driver::array_requirements(place, array, device) },
            // SAFETY: as above.
            Self::Mipmapped => unsafe { driver::mipmapped_requirements(place, array, device) },
        };
        (status? == SUCCESS && requirement.size > 0).then_some(requirement.size as u64)
    }
}

/// The size of the elements. A chain of mipmaps takes at most twice its first level.
fn estimate(extent: ArrayExtent, levels: u32) -> u64 {
    let element = format_bytes(extent.format).saturating_mul(u64::from(extent.channels.max(1)));
    let first = extent.elements.saturating_mul(element);
    if levels > 1 {
        first.saturating_mul(2)
    } else {
        first
    }
}

/// Charges, calls `ask`, corrects the charge and records the array.
fn open(
    site: ChargeTarget,
    kind: ArrayKind,
    estimate: u64,
    place: *mut Opaque,
    ask: impl Fn(*mut Opaque) -> Status,
) -> Status {
    let process = site.process;
    let estimated = worst_case(estimate);
    if !process.charge_for(ApiFamily::Array, site.card, estimated) {
        return process.refusal(site.card, estimate, || {
            let mut array: Opaque = core::ptr::null_mut();
            let status = ask(&raw mut array);
            if status == SUCCESS {
                kind.destroy(array);
            }
            status
        });
    }
    let mut array: Opaque = core::ptr::null_mut();
    let status = ask(&raw mut array);
    if status != SUCCESS {
        process.uncharge(site.card, estimated);
        return status;
    }
    let bytes = kind.requirement(array).unwrap_or(estimate);
    let more = worst_case(bytes).saturating_sub(estimated);
    if more > 0 && !process.charge_for(ApiFamily::Array, site.card, more) {
        kind.destroy(array);
        process.uncharge(site.card, estimated);
        return OUT_OF_MEMORY;
    }
    let entry = ArrayAllocation {
        card: site.card,
        context: site.context,
        bytes,
    };
    let cost = process.allocations.lock().enter_array(array as u64, entry);
    process.adjust(site.card, estimated.saturating_add(more), cost);
    // SAFETY: the caller passes a place for the array, as to the driver.
    unsafe { place.write(array) };
    status
}

/// # Safety
/// `shape` must be null or what the driver takes.
unsafe fn create_any<D: DescribesArray>(
    kind: ArrayKind,
    levels: u32,
    array: *mut Opaque,
    shape: *const D,
    ask: impl Fn(*mut Opaque) -> Status,
) -> Status {
    // SAFETY: the caller guarantees it.
    let shape = unsafe { shape.as_ref() }.map(|shape| shape.extent());
    let shape = shape.filter(|shape| !array.is_null() && !shape.is_empty);
    match (process::charge_scope(), shape) {
        (ChargeScope::Charged(site), Some(shape)) => {
            open(site, kind, estimate(shape, levels), array, ask)
        }
        (ChargeScope::Closed, Some(_)) => OUT_OF_MEMORY,
        (ChargeScope::Charged(_) | ChargeScope::Closed | ChargeScope::Free, _) => ask(array),
    }
}

pub(crate) unsafe fn create<D: DescribesArray>(
    real: Create<D>,
    array: *mut Opaque,
    shape: *const D,
) -> Status {
    // SAFETY: the shape is the caller's, the place the caller's or a local variable.
    let ask = |place| unsafe { real(place, shape) };
    // SAFETY: the caller passes a shape, or null, as to the driver.
    unsafe { create_any(ArrayKind::Plain, 1, array, shape, ask) }
}

pub(crate) unsafe fn create_mipmapped(
    real: CreateMipmapped,
    array: *mut Opaque,
    shape: *const ArrayShape3d,
    levels: u32,
) -> Status {
    // SAFETY: as for `create`.
    let ask = |place| unsafe { real(place, shape, levels) };
    // SAFETY: as for `create`.
    unsafe { create_any(ArrayKind::Mipmapped, levels, array, shape, ask) }
}

pub(crate) unsafe fn destroy(real: Destroy, array: Opaque) -> Status {
    // SAFETY: the array is the caller's own.
    let ask = || unsafe { real(array) };
    let Some(process) = process::current() else {
        return ask();
    };
    let Some(taken) = process.allocations.lock().take_array(array as u64) else {
        let status = ask();
        if status == SUCCESS && process.account().is_some() {
            super::physical_memory::let_go_of(process, BindingHolder::Array(array as u64));
        }
        return status;
    };
    let (card, cost) = (taken.array.card, taken.cost);
    let status = ask();
    let after = match status {
        SUCCESS => 0,
        _ => process
            .allocations
            .lock()
            .enter_array(array as u64, taken.array),
    };
    process.adjust(card, cost, after);
    status
}
