//! The capture mode in which hooks ask the driver something of their own.
//!
//! While a stream is being captured in the global mode, the default, a potentially unsafe call from *any*
//! thread of the process fails and invalidates the capture (CUDA driver API, `cuThreadExchangeStreamCaptureMode`
//! and `cuStreamBeginCapture`). NVIDIA does not list these calls; reading a pool's attributes and asking for
//! an event are among them. A program that captures expects none of that from a call that it makes meanwhile,
//! so a question of ours is asked with the thread in the relaxed mode, which forbids no such call. The
//! program's own calls are made in the program's own mode: what breaks a capture without this library
//! breaks it with it.
//!
//! # Decision: always, not only while something is being captured
//! Nobody here knows whether anything is: captures also begin by functions that no hook sees. A switch there
//! and back takes two calls of the driver that only touch the thread; a hook that asks nothing makes none.
//! What hooks ask most (the current context and device, identities, what a graph holds) is always
//! allowed and asked without it.

use super::exchange_capture_mode;
use crate::foreign::{CAPTURE_RELAXED, SUCCESS};

/// A question that the driver answers in every mode.
#[must_use]
pub(super) struct AnyCaptureMode;

/// While it lives, this thread is in the relaxed mode.
#[must_use]
pub(super) struct RelaxedModeGuard {
    before: Option<u32>,
}

/// For questions that no capture forbids.
pub(super) const fn anytime() -> AnyCaptureMode {
    AnyCaptureMode
}

/// For questions that one may forbid. A driver without modes (before CUDA 10.1) is asked as it is.
pub(super) fn relaxed() -> RelaxedModeGuard {
    let before = exchange(CAPTURE_RELAXED).filter(|mode| *mode != CAPTURE_RELAXED);
    RelaxedModeGuard { before }
}

impl Drop for RelaxedModeGuard {
    fn drop(&mut self) {
        if let Some(mode) = self.before {
            let _ = exchange(mode);
        }
    }
}

/// Changes the mode of this thread, and says what it was.
fn exchange(mut mode: u32) -> Option<u32> {
    // SAFETY: the pointer is to a local variable that holds a mode.
    let status = unsafe { exchange_capture_mode(&raw mut mode) }?;
    (status == SUCCESS).then_some(mode)
}
