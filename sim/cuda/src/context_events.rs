//! Events of whole contexts: record all work that a context has been given, or make all later work wait.
//!
//! Work is done when its call returns, so there is nothing to wait for. The capture rules apply: while a stream of the
//! context is being captured, recording or waiting is forbidden and invalidates the capture.

use crate::capture::rules;
use crate::driver::tables;
use crate::error::{INVALID_CONTEXT, Outcome};
use crate::event;
use crate::export::exports;
use crate::green_contexts::green_of;

exports! {
    cuCtxRecordEvent(context: u64, event: u64) = record => "cuCtxRecordEvent" @ 12050;
    cuCtxWaitEvent(context: u64, event: u64) = wait => "cuCtxWaitEvent" @ 12050;
}

/// Whether `context` includes the work of `other`. A primary context includes that of its green contexts.
fn includes(context: u64, other: u64) -> bool {
    if context == other {
        return true;
    }
    let green = green_of(other);
    let tables = tables();
    let device = tables.greens.get(&green).map(|green| green.device);
    let primary = device.and_then(|device| tables.primaries.get(&device));
    primary.is_some_and(|primary| primary.handle == context)
}

fn check(context: u64) -> Outcome {
    tables().context(context).map_err(|_| INVALID_CONTEXT)?;
    rules::check_contexts(|other| includes(context, other))
}

pub(crate) fn record(context: u64, event: u64) -> Outcome {
    event::check(event)?;
    check(context)?;
    event::record_now(event)
}

/// An event that was recorded in a capture cannot be waited for.
pub(crate) fn wait(context: u64, event: u64) -> Outcome {
    rules::check_unsupported(event::captured_in(event)?)?;
    check(context)
}
