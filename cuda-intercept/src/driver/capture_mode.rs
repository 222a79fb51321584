//! The stream capture mode for the hooks' own calls to the driver.
//!
//! While a stream is captured in the global mode, the default, a potentially unsafe call from *any* thread of the
//! process fails and invalidates the capture (CUDA driver API, `cuThreadExchangeStreamCaptureMode` and
//! `cuStreamBeginCapture`). NVIDIA does not list these calls; reading a pool's attributes and querying an event are
//! among them. A hook must not break the program's capture by such a call. So it puts the thread into the relaxed
//! mode for its own calls, which forbids none of them. The program's own calls run in the program's mode: what breaks
//! a capture without this library also breaks it with the library.
//!
//! # Decision: always, not only during a capture
//! The hooks do not know whether a stream is being captured, because captures also begin by functions that are not
//! hooked. To switch and switch back takes two driver calls that only affect the thread; a hook that asks nothing
//! makes none. The most frequent queries (the current context and device, identities, the contents of a graph) are
//! allowed in every mode and need no switch.

use crate::foreign::{CAPTURE_RELAXED, SUCCESS, Status};

/// The driver's `cuThreadExchangeStreamCaptureMode`; `None` if it has no such function.
type ExchangeMode = unsafe fn(*mut u32) -> Option<Status>;

/// A query that the driver answers in every mode.
#[must_use]
pub(super) struct AnyCaptureMode;

/// Keeps this thread in the relaxed mode while it lives.
#[must_use]
pub(super) struct RelaxedModeGuard {
    driver: ExchangeMode,
    before: Option<u32>,
}

/// For queries that no capture forbids.
pub(super) const fn anytime(_: ExchangeMode) -> AnyCaptureMode {
    AnyCaptureMode
}

/// For queries that a capture may forbid. A driver without capture modes (before CUDA 10.1) is queried as it is.
pub(super) fn relaxed(driver: ExchangeMode) -> RelaxedModeGuard {
    let before = exchange(driver, CAPTURE_RELAXED).filter(|mode| *mode != CAPTURE_RELAXED);
    RelaxedModeGuard { driver, before }
}

impl Drop for RelaxedModeGuard {
    fn drop(&mut self) {
        if let Some(mode) = self.before {
            let _ = exchange(self.driver, mode);
        }
    }
}

/// Changes the mode of this thread and returns the old one.
fn exchange(driver: ExchangeMode, mut mode: u32) -> Option<u32> {
    // SAFETY: the pointer is to a local variable that holds a mode.
    let status = unsafe { driver(&raw mut mode) }?;
    (status == SUCCESS).then_some(mode)
}
