//! Errors: the runtime's codes, and the last one of each thread.
//!
//! Since CUDA 10.1 equivalent codes of the runtime and the driver have the same number, so driver results are passed on
//! unchanged.

use std::cell::Cell;
use std::ffi::{CStr, c_char};

use crate::driver;
use crate::error_names::NAMES;

/// A result that is not success: a `cudaError_t` that is not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CudartError(pub(crate) i32);

/// The result of a runtime function.
pub(crate) type Outcome = Result<(), CudartError>;

pub(crate) const INVALID_VALUE: CudartError = CudartError(1);
pub(crate) const INVALID_CONFIGURATION: CudartError = CudartError(9);
pub(crate) const INVALID_SYMBOL: CudartError = CudartError(13);
pub(crate) const INVALID_COPY_DIRECTION: CudartError = CudartError(21);
pub(crate) const INSUFFICIENT_DRIVER: CudartError = CudartError(35);
pub(crate) const INVALID_DEVICE_FUNCTION: CudartError = CudartError(98);
pub(crate) const INVALID_DEVICE: CudartError = CudartError(101);
pub(crate) const NOT_SUPPORTED: CudartError = CudartError(801);

/// Errors that only the end of the process clears: `cudaGetLastError` keeps them.
const STICKY: &[i32] = &[214, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721];

thread_local! {
    static LAST: Cell<i32> = const { Cell::new(0) };
}

/// Converts an outcome to its code. An error also becomes the thread's last error.
pub(crate) fn finish(outcome: Outcome) -> i32 {
    let Err(CudartError(code)) = outcome else {
        return 0;
    };
    // A thread that is ending has no last error any more.
    let _ = LAST.try_with(|last| last.set(code));
    code
}

/// Converts a driver's result.
pub(crate) fn check(code: i32) -> Outcome {
    if code == 0 {
        Ok(())
    } else {
        Err(CudartError(code))
    }
}

fn last() -> i32 {
    LAST.try_with(Cell::get).unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> i32 {
    last()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> i32 {
    let code = last();
    if !STICKY.contains(&code) {
        let _ = LAST.try_with(|last| last.set(0));
    }
    code
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(code: i32) -> *const c_char {
    let known = NAMES.iter().find(|row| row.0 == code);
    known
        .map_or(c"unrecognized error code", |row| row.1)
        .as_ptr()
}

/// Descriptions come from the driver, for the codes that it shares with the runtime.
#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(code: i32) -> *const c_char {
    if let Some(row) = NAMES.iter().find(|row| row.0 == code)
        && let Some(text) = row.2
    {
        return text.as_ptr();
    }
    let mut text: *const c_char = std::ptr::null();
    match driver::cuGetErrorString(code, &raw mut text) {
        Ok(()) if !text.is_null() => text,
        _ => cudaGetErrorName(code),
    }
}

/// The result of every name without a function in this crate.
#[unsafe(no_mangle)]
extern "C" fn apportion_runtime_not_supported(name: *const c_char) -> i32 {
    if std::env::var_os("APPORTION_SIM_SHOW_UNSUPPORTED").is_some() {
        // SAFETY: the generated callers pass a string literal.
        let name = unsafe { CStr::from_ptr(name) };
        eprintln!(
            "apportion: the simulated CUDA runtime has no {}",
            name.to_string_lossy()
        );
    }
    finish(Err(NOT_SUPPORTED))
}
