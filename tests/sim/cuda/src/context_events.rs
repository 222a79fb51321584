//! Events of whole contexts: all that was asked of a context so far, and all that will be asked of it.
//!
//! What was asked is done when a call returns, so there is nothing to wait for. What a capture forbids is forbidden here:
//! a context whose streams are being captured has no such moment, and asking for one breaks the captures.

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

/// The work of a context. That of a primary one includes what its green contexts do.
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
