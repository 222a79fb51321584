//! Contexts: each is charged a reserve, which is taken off, with everything in the context, when it ends.
//!
//! The driver takes hundreds of megabytes for a context, and the amount is only known afterwards. The agent learns it
//! for each combination of GPU model and driver, and writes it into the account. So the hooks can charge it before
//! the driver call. A further context of a process on the same card costs less, and has its own reserve. Libraries
//! are loaded into every context, and are charged with it.
//!
//! A primary context that the driver created unseen is recorded like any other when it is first met. It is known to
//! be the primary one when the program also retains it, or, at the latest, before a reset ends it.

use apportion_gate::{ContextReserve, HeldMemory};

use crate::foreign::{Context, Device, OUT_OF_MEMORY, Opaque, SUCCESS, Status};
use crate::process::{self, ProcessState};
use crate::{driver, launch_cache, spin_lock};

type Create = unsafe extern "C" fn(*mut Context, u32, Device) -> Status;
type CreateV3 = unsafe extern "C" fn(*mut Context, Opaque, i32, u32, Device) -> Status;
type CreateV4 = unsafe extern "C" fn(*mut Context, Opaque, u32, Device) -> Status;
type CreateGreen = unsafe extern "C" fn(*mut Opaque, Opaque, Device, u32) -> Status;
type CreateVdpau = unsafe extern "C" fn(*mut Context, u32, Device, u32, Opaque) -> Status;
type Destroy = unsafe extern "C" fn(Context) -> Status;
type Retain = unsafe extern "C" fn(*mut Context, Device) -> Status;
type Release = unsafe extern "C" fn(Device) -> Status;

/// This thread's turn to retain the primary context of a device. Other threads wait for the outcome, and hold nothing
/// meanwhile. If the driver asks for the context again in the same thread, that thread keeps its turn.
struct RetainGuard {
    process: &'static ProcessState,
    device: Device,
    thread: i32,
}

impl RetainGuard {
    fn wait(process: &'static ProcessState, device: Device) -> Self {
        /// Each turn takes some seconds. A card may need as long for its first context.
        const TURNS: u32 = 8;
        // SAFETY: the call cannot fail.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        let thread = i32::try_from(thread).unwrap_or(0);
        let take = |is_tired| {
            let is_ours = (process.allocations.lock()).begin_retain(device, thread, is_tired);
            is_ours.then_some(())
        };
        if !(0..TURNS).any(|_| spin_lock::wait_for(|| take(false)).is_some()) {
            let _ = take(true);
        }
        Self {
            process,
            device,
            thread,
        }
    }
}

impl Drop for RetainGuard {
    fn drop(&mut self) {
        let mut allocations = self.process.allocations.lock();
        allocations.end_retain(self.device, self.thread);
    }
}

/// Charges a context's reserve, calls `ask`, and records the context.
fn open(
    device: Device,
    is_primary: bool,
    place: *mut Context,
    ask: impl Fn(*mut Context) -> Status,
) -> Status {
    open_with(device, is_primary, place, |_| 0, ask)
}

/// Like [`open`], for a context that creates another one; `also` returns the reserve of that one.
fn open_with(
    device: Device,
    is_primary: bool,
    place: *mut Context,
    also: impl Fn(ContextReserve) -> u64,
    ask: impl Fn(*mut Context) -> Status,
) -> Status {
    let process = match process::to_charge() {
        Ok(process) => process,
        Err(refused) => return refused,
    };
    let limited = process.account().zip(process.card_of(device));
    let Some((account, card)) = limited.filter(|_| !place.is_null()) else {
        return ask(place);
    };
    let _retain = is_primary.then(|| RetainGuard::wait(process, device));
    let is_there = is_primary
        && process.allocations.lock().primary(device).is_some()
        && driver::primary_is_active(device) == Some(true);
    let reserves = account.reserve(card);
    let (reserve, libraries) = if is_there {
        (0, 0)
    } else {
        let allocations = process.allocations.lock();
        let reserve = allocations.reserve_for(card, reserves);
        let all = reserve.saturating_add(also(reserves));
        (all, allocations.loads.in_new_context())
    };
    let charged = reserve.saturating_add(libraries);
    if charged > 0 && !process.charge(card, charged) {
        return OUT_OF_MEMORY;
    }
    let mut context: Context = core::ptr::null_mut();
    let status = ask(&raw mut context);
    if status != SUCCESS {
        process.uncharge(card, charged);
        return status;
    }
    // SAFETY: the caller passes a place for the context, as to the driver.
    unsafe { place.write(context) };
    let (due, total) = {
        let mut allocations = process.allocations.lock();
        let is_new = allocations.open_context(context as u64, card, device, reserve, is_primary);
        // The driver may return a context that is charged already.
        let due = if is_new {
            reserve
                .saturating_add(allocations.top_up(context as u64, reserves))
                .saturating_add(allocations.libraries_in(context as u64))
        } else {
            0
        };
        (due, allocations.reserves(card))
    };
    process.adjust(card, charged, due);
    account.set_reserve(card, total);
    process.show_modules(card);
    status
}

/// Calls `ask`, and uncharges a context if the driver reports success and `has_ended` confirms that it is gone.
fn close(
    process: &ProcessState,
    handle: u64,
    ask: impl Fn() -> Status,
    has_ended: impl Fn() -> bool,
) -> Status {
    launch_cache::forget();
    let Some(ended) = process.allocations.lock().end_context(handle) else {
        return ask();
    };
    let status = ask();
    if status != SUCCESS || !has_ended() {
        process.allocations.lock().context_lives(ended);
        return status;
    }
    let card = ended.card();
    let (freed, reserves) = {
        let mut allocations = process.allocations.lock();
        (allocations.context_ended(ended), allocations.reserves(card))
    };
    super::shared_holds::leave(process, HeldMemory::Ended);
    super::physical_memory::let_go_in(process, ended);
    process.uncharge(card, freed);
    if let Some(account) = process.account() {
        account.set_reserve(card, reserves);
        process.show_modules(card);
    }
    super::pool_settlement::settle_all();
    status
}

pub(crate) unsafe fn create(
    real: Create,
    context: *mut Context,
    flags: u32,
    device: Device,
) -> Status {
    // SAFETY: the arguments are the caller's, the place the caller's or a local variable.
    open(device, false, context, |place| unsafe {
        real(place, flags, device)
    })
}

pub(crate) unsafe fn create_v3(
    real: CreateV3,
    context: *mut Context,
    affinity: Opaque,
    count: i32,
    flags: u32,
    device: Device,
) -> Status {
    // SAFETY: as for `create`.
    open(device, false, context, |place| unsafe {
        real(place, affinity, count, flags, device)
    })
}

pub(crate) unsafe fn create_v4(
    real: CreateV4,
    context: *mut Context,
    parameters: Opaque,
    flags: u32,
    device: Device,
) -> Status {
    // SAFETY: as for `create`.
    open(device, false, context, |place| unsafe {
        real(place, parameters, flags, device)
    })
}

/// Creates a green context. It retains the primary context while it lives, and so may create that one too. The
/// program has no handle of such a primary context, so its reserve is part of the green context's. If the program
/// retains it later, it is charged as a further context until the green one ends.
pub(crate) unsafe fn create_green(
    real: CreateGreen,
    context: *mut Opaque,
    description: Opaque,
    device: Device,
    flags: u32,
) -> Status {
    // SAFETY: as for `create`.
    open_with(
        device,
        false,
        context,
        |reserves: ContextReserve| match driver::primary_is_active(device) {
            Some(false) => reserves.further,
            Some(true) | None => 0,
        },
        |place| unsafe { real(place, description, device, flags) },
    )
}

pub(crate) unsafe fn destroy_green(real: Destroy, context: Opaque) -> Status {
    // SAFETY: the context is the caller's own.
    let ask = || unsafe { real(context) };
    let Some(process) = process::current() else {
        return ask();
    };
    let close_green = || close(process, context as u64, ask, || true);
    let device = process.allocations.lock().device_of(context as u64);
    let primary =
        device.and_then(|device| Some((device, process.allocations.lock().primary(device)?)));
    let Some((device, primary)) = primary else {
        return close_green();
    };
    close(process, primary, close_green, || {
        driver::primary_is_active(device) == Some(false)
    })
}

pub(crate) unsafe fn create_vdpau(
    real: CreateVdpau,
    context: *mut Context,
    flags: u32,
    device: Device,
    display: u32,
    resolve: Opaque,
) -> Status {
    // SAFETY: as for `create`.
    open(device, false, context, |place| unsafe {
        real(place, flags, device, display, resolve)
    })
}

pub(crate) unsafe fn retain_primary(real: Retain, context: *mut Context, device: Device) -> Status {
    // SAFETY: as for `create`.
    open(device, true, context, |place| unsafe {
        real(place, device)
    })
}

pub(crate) unsafe fn destroy(real: Destroy, context: Context) -> Status {
    // SAFETY: the context is the caller's own.
    let ask = || unsafe { real(context) };
    match process::current() {
        Some(process) => close(process, context as u64, ask, || true),
        None => ask(),
    }
}

/// Releases one use of a context. The last release ends it, and then it is no longer current.
pub(crate) unsafe fn detach(real: Destroy, context: Context) -> Status {
    // SAFETY: the context is the caller's own.
    let ask = || unsafe { real(context) };
    match process::current() {
        Some(process) => close(process, context as u64, ask, || {
            driver::current_context() != Some(context)
        }),
        None => ask(),
    }
}

/// Ends a use of the primary context. It is gone if the driver then reports it as inactive.
fn end_primary(
    handle_of: impl Fn(&ProcessState) -> Option<u64>,
    device: Device,
    ask: impl Fn() -> Status,
) -> Status {
    let Some(process) = process::current() else {
        return ask();
    };
    // This also covers a primary context that the driver created unseen and that is not recorded as primary.
    launch_cache::forget();
    let Some(handle) = handle_of(process) else {
        return ask();
    };
    close(process, handle, ask, || {
        driver::primary_is_active(device) == Some(false)
    })
}

pub(crate) unsafe fn release_primary(real: Release, device: Device) -> Status {
    // SAFETY: the device is the caller's own.
    end_primary(
        |process: &ProcessState| process.allocations.lock().primary(device),
        device,
        || unsafe { real(device) },
    )
}

/// The handle of a device's primary context that is about to be reset, if the context is recorded. If no context is
/// known to be primary but some context is on the device, the handle comes from the driver, by one retain and
/// release. That would end a context without other uses, so only a reset asks.
fn primary_to_reset(process: &ProcessState, device: Device) -> Option<u64> {
    let (known, may_be) = {
        let allocations = process.allocations.lock();
        (
            allocations.primary(device),
            allocations.has_context_on(device),
        )
    };
    if known.is_some() || !may_be || driver::primary_is_active(device) != Some(true) {
        return known;
    }
    let handle = driver::primary_handle(device)? as u64;
    let is_entered = process.allocations.lock().name_primary(device, handle);
    is_entered.then_some(handle)
}

/// Ends the primary context, regardless of its use count.
pub(crate) unsafe fn reset_primary(real: Release, device: Device) -> Status {
    // SAFETY: the device is the caller's own.
    end_primary(
        |process| primary_to_reset(process, device),
        device,
        || unsafe { real(device) },
    )
}
