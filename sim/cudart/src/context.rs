//! The device of each thread, and the primary contexts of the devices.
//!
//! The order of driver calls is that of NVIDIA's runtime, as far as the public API allows. First ask for the current
//! context. If there is one, use it, also if another library created it. Only if there is none, make the device's primary context
//! current and retain it. NVIDIA's runtime knows a primary context's handle before the context is active. This one
//! learns it at first use, so the two differ once per device.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::driver;
use crate::error::{CudartError, INVALID_DEVICE, Outcome};

/// More than the devices of any machine.
const DEVICES: usize = 128;

/// A device's primary context.
#[derive(Debug)]
struct RuntimePrimary {
    /// Written by: the thread that retains it first, under `RETAINING`. Read by: every call. Acquire/Release.
    handle: AtomicPtr<c_void>,
    /// Whether this library has retained it since the last reset. Written under `RETAINING`.
    is_retained: AtomicBool,
}

static PRIMARIES: [RuntimePrimary; DEVICES] = [const {
    RuntimePrimary {
        handle: AtomicPtr::new(std::ptr::null_mut()),
        is_retained: AtomicBool::new(false),
    }
}; DEVICES];
/// Held while a context is retained or reset, so that each context is retained only once.
static RETAINING: Mutex<()> = Mutex::new(());
/// Written by: the first call that succeeds. Read by: every call. Relaxed: the driver does its own synchronization.
static INITIALIZED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static DEVICE: Cell<i32> = const { Cell::new(0) };
}

/// For functions that require nothing.
#[expect(clippy::unnecessary_wraps, reason = "a row may need more")]
pub(crate) fn nothing() -> Outcome {
    Ok(())
}

pub(crate) fn driver() -> Outcome {
    if !INITIALIZED.load(Ordering::Relaxed) {
        driver::cuInit(0)?;
        INITIALIZED.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// Gives the thread a current context if it has none.
pub(crate) fn context() -> Outcome {
    driver()?;
    let current = current()?;
    if current.is_null() {
        return activate(DEVICE.get());
    }
    // A primary context that was reset stays current, and is active again when it is retained.
    let own = primary(DEVICE.get())?;
    let of = if own.handle.load(Ordering::Acquire) == current {
        Some(own)
    } else {
        PRIMARIES
            .iter()
            .find(|primary| primary.handle.load(Ordering::Acquire) == current)
    };
    match of {
        Some(primary) if !primary.is_retained.load(Ordering::Acquire) => {
            activate(i32::try_from(primary.device()).map_err(|_| INVALID_DEVICE)?)
        }
        _ => Ok(()),
    }
}

impl RuntimePrimary {
    fn is_known(&self) -> bool {
        !self.handle.load(Ordering::Acquire).is_null()
    }

    /// Its device, which is its index in the table.
    fn device(&self) -> usize {
        PRIMARIES
            .iter()
            .position(|primary| std::ptr::eq(primary, self))
            .unwrap_or(DEVICES)
    }
}

/// The thread's current context, or null.
pub(crate) fn current() -> Result<*mut c_void, CudartError> {
    let mut current = std::ptr::null_mut();
    driver::cuCtxGetCurrent(&raw mut current)?;
    Ok(current)
}

fn primary(device: i32) -> Result<&'static RuntimePrimary, CudartError> {
    usize::try_from(device)
        .ok()
        .and_then(|device| PRIMARIES.get(device))
        .ok_or(INVALID_DEVICE)
}

/// Makes the primary context of a device current.
fn activate(device: i32) -> Outcome {
    let handle = retained(device)?;
    driver::cuCtxSetCurrent(handle)
}

/// The handle of a device's primary context, which is active on return.
pub(crate) fn retained(device: i32) -> Result<*mut c_void, CudartError> {
    let primary = primary(device)?;
    if primary.is_retained.load(Ordering::Acquire) {
        return Ok(primary.handle.load(Ordering::Acquire));
    }
    let _retaining = RETAINING.lock().unwrap_or_else(PoisonError::into_inner);
    if primary.is_retained.load(Ordering::Acquire) {
        return Ok(primary.handle.load(Ordering::Acquire));
    }
    if primary.is_known() {
        // The handle is valid before the context is active.
        driver::cuCtxSetCurrent(primary.handle.load(Ordering::Acquire))?;
    }
    let mut handle = std::ptr::null_mut();
    driver::cuDevicePrimaryCtxRetain(&raw mut handle, device)?;
    primary.handle.store(handle, Ordering::Release);
    primary.is_retained.store(true, Ordering::Release);
    Ok(handle)
}

pub(crate) fn device() -> Result<i32, CudartError> {
    if current()?.is_null() {
        return Ok(DEVICE.get());
    }
    let mut device = 0;
    match driver::cuCtxGetDevice(&raw mut device) {
        Ok(()) => Ok(device),
        // The context was reset. It becomes active again when it is used.
        Err(_) => Ok(DEVICE.get()),
    }
}

/// Switches the thread to another device and activates its context.
pub(crate) fn choose(device: i32) -> Outcome {
    check_device(device)?;
    // In the child of a fork this call fails. Without it, the child could wait for a lock that no thread holds.
    current()?;
    activate(device)?;
    DEVICE.set(device);
    Ok(())
}

/// Fails if there is no such device.
pub(crate) fn check_device(device: i32) -> Outcome {
    let mut known = 0;
    driver::cuDeviceGet(&raw mut known, device)
}

/// Resets the primary context of the thread's device.
pub(crate) fn reset() -> Outcome {
    let device = device()?;
    let _retaining = RETAINING.lock().unwrap_or_else(PoisonError::into_inner);
    driver::cuDevicePrimaryCtxReset(device)?;
    primary(device)?.is_retained.store(false, Ordering::Release);
    Ok(())
}
