//! What invalidates a capture, by the documentation of `cuThreadExchangeStreamCaptureMode` and `cuStreamBeginCapture`
//! and by the programming guide's section on prohibited operations:
//!
//! - a potentially unsafe call that the calling thread's mode forbids, because of a capture of its own that is not
//!   relaxed or, in global mode, because of another thread's global capture;
//! - querying or waiting for a captured stream, an event of a capture, or the context of either;
//! - using the null stream while a blocking stream of its context is being captured.
//!
//! # Decision: what counts as potentially unsafe
//! NVIDIA names `cudaMalloc` and gives no list. This list has the calls that were seen to invalidate captures
//! (allocating and freeing, loading code, querying events) and, to be strict, all pool calls. A program that avoids
//! these on the simulated driver avoids them on every driver.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::thread;

use super::{
    CAPTURED_EVENT, CaptureMode, CaptureStatus, CapturedEvent, IMPLICIT, MODE, UNDER_WAY,
    UNSUPPORTED,
};
use crate::driver::{LockedTables, tables};
use crate::error::{CudaError, Outcome};
use crate::stream::{is_legacy, known};

/// The functions that are potentially unsafe, without version and stream.
const UNSAFE: &[&str] = &[
    "cuArray3DCreate",
    "cuArrayCreate",
    "cuArrayDestroy",
    "cuCtxCreate",
    "cuCtxDestroy",
    "cuCtxSetLimit",
    "cuDeviceGetGraphMemAttribute",
    "cuDeviceGraphMemTrim",
    "cuDevicePrimaryCtxReset",
    "cuDeviceSetGraphMemAttribute",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
    "cuLibraryUnload",
    "cuMemAlloc",
    "cuMemAllocHost",
    "cuMemAllocManaged",
    "cuMemAllocPitch",
    "cuMemFree",
    "cuMemFreeHost",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuMemHostUnregister",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuModuleUnload",
];

thread_local! {
    /// Whether the function that this thread is in maps the null stream to the thread's own default stream.
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether the null stream means the thread's own default stream.
pub(crate) fn is_per_thread() -> bool {
    PER_THREAD.get()
}

/// A function's name without version and stream suffix.
fn stem(function: &str) -> &str {
    let name = ["_ptsz", "_ptds"]
        .iter()
        .find_map(|suffix| function.strip_suffix(suffix))
        .unwrap_or(function);
    match name.rsplit_once("_v") {
        Some((stem, version)) if version.parse::<u32>().is_ok() => stem,
        Some(_) | None => name,
    }
}

/// Synchronous copies and fills use the null stream.
fn is_synchronous_copy(stem: &str) -> bool {
    (stem.starts_with("cuMemcpy") || stem.starts_with("cuMemset")) && !stem.ends_with("Async")
}

/// Whether a function may be called now, by its name alone.
pub(crate) fn check(function: &str) -> Outcome {
    PER_THREAD.set(function.ends_with("_ptsz") || function.ends_with("_ptds"));
    if UNDER_WAY.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    match stem(function) {
        "cuCtxSynchronize" => check_context(),
        stem if UNSAFE.contains(&stem) => check_unsafe(),
        stem if is_synchronous_copy(stem) => check_stream(0),
        _ => Ok(()),
    }
}

fn check_unsafe() -> Outcome {
    let (mode, here) = (MODE.get(), thread::current().id());
    let is_forbidden =
        tables()
            .captures
            .invalidate(|capture| match (mode, capture.thread == here) {
                (CaptureMode::Relaxed, _) => false,
                (CaptureMode::Global | CaptureMode::ThreadLocal, true) => {
                    capture.mode != CaptureMode::Relaxed
                }
                (CaptureMode::Global, false) => capture.mode == CaptureMode::Global,
                (CaptureMode::ThreadLocal, false) => false,
            });
    refused(is_forbidden, UNSUPPORTED)
}

/// Synchronizing a whole context is forbidden while any of its streams is being captured.
fn check_context() -> Outcome {
    match crate::context::current() {
        Ok((context, _)) => check_contexts(|other| other == context),
        Err(_) => Ok(()),
    }
}

/// The same for all contexts that `is_one` selects.
pub(crate) fn check_contexts(is_one: impl Fn(u64) -> bool) -> Outcome {
    let origins: Vec<(u64, Option<u64>)> = {
        let tables = tables();
        let origins = tables.captures.captures.values().map(|of| of.origin);
        origins
            .map(|stream| (stream, tables.streams.get(&stream).map(|of| of.context())))
            .collect()
    };
    // A default stream belongs to whichever context is current, so it may be in one of these.
    let broken: Vec<u64> = origins
        .into_iter()
        .filter(|(_, context)| context.is_none_or(&is_one))
        .map(|(stream, _)| stream)
        .collect();
    let mut tables = tables();
    let found = tables
        .captures
        .invalidate(|capture| broken.contains(&capture.origin));
    refused(found, UNSUPPORTED)
}

/// Whether any blocking stream of the null stream's context is being captured.
pub(crate) fn legacy_is_in_use(null: u64) -> Result<bool, CudaError> {
    let context = known(null)?.context();
    let tables = tables();
    let mut captured = tables.captures.streams.keys();
    Ok(captured.any(|stream| blocks(&tables, *stream, context)))
}

fn blocks(tables: &LockedTables, stream: u64, context: u64) -> bool {
    let known = tables.streams.get(&stream);
    known.is_some_and(|stream| stream.is_in(context) && stream.is_blocking())
}

/// Whether a stream accepts work.
pub(crate) fn check_stream(on: u64) -> Outcome {
    if UNDER_WAY.load(Ordering::Relaxed) == 0 || !is_legacy(on) || !legacy_is_in_use(on)? {
        return Ok(());
    }
    let context = known(on)?.context();
    let mut tables = tables();
    let broken: Vec<u64> = {
        let streams = tables.captures.streams.iter();
        let broken = streams.filter(|(stream, _)| blocks(&tables, **stream, context));
        broken.map(|(_, participant)| participant.capture).collect()
    };
    for id in broken {
        if let Some(capture) = tables.captures.captures.get_mut(&id) {
            capture.status = CaptureStatus::Invalidated;
        }
    }
    Err(IMPLICIT)
}

/// Whether a stream may be synchronized or queried.
pub(crate) fn check_wait(on: u64) -> Outcome {
    check_stream(on)?;
    let mut tables = tables();
    let found = tables.captures.of(on).map(|(_, capture)| {
        capture.status = CaptureStatus::Invalidated;
    });
    refused(found.is_some(), UNSUPPORTED)
}

/// The same for an event that was recorded in a capture.
pub(crate) fn check_event(recorded: Option<CapturedEvent>) -> Outcome {
    refused(breaks(recorded), CAPTURED_EVENT)
}

/// The same where a whole context waits for the event.
pub(crate) fn check_unsupported(recorded: Option<CapturedEvent>) -> Outcome {
    refused(breaks(recorded), UNSUPPORTED)
}

/// Whether an event was recorded in a capture. If so, invalidates that capture.
fn breaks(recorded: Option<CapturedEvent>) -> bool {
    let Some(CapturedEvent { capture, .. }) = recorded else {
        return false;
    };
    if let Some(capture) = tables().captures.captures.get_mut(&capture) {
        capture.status = CaptureStatus::Invalidated;
    }
    true
}

fn refused(is_forbidden: bool, error: CudaError) -> Outcome {
    if is_forbidden { Err(error) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_holds_for_all_versions_of_a_function() {
        for name in ["cuMemFree", "cuMemFree_v2", "cuMemPoolTrimTo"] {
            assert!(UNSAFE.contains(&stem(name)), "{name}");
        }
        for name in ["cuMemFreeAsync_ptsz", "cuMemAllocAsync", "cuMemGetInfo_v2"] {
            assert!(!UNSAFE.contains(&stem(name)), "{name}");
        }
        assert!(is_synchronous_copy(stem("cuMemcpyHtoD_v2")));
        assert!(!is_synchronous_copy(stem("cuMemcpyHtoDAsync_v2_ptsz")));
    }
}
