//! Events: points that a stream has passed. A stream is always empty, so a recorded event is complete.

use std::collections::HashMap;
use std::time::Instant;

use crate::capture::{CapturedEvent, recorded, rules};
use crate::context::current;
use crate::driver::{self, tables};
use crate::error::{CudaError, INVALID_HANDLE, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::pointer::Out;
use crate::stream::stream;

/// The events of a process by handle.
pub(crate) type Events = HashMap<u64, CudaEvent>;

/// An event that the program has created.
#[derive(Debug, Clone)]
pub(crate) struct CudaEvent {
    pub(crate) flags: u32,
    pub(crate) recorded: Option<Instant>,
    /// What the event stands for, if it was last recorded in a capture.
    pub(crate) captured: Option<CapturedEvent>,
}

/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const WITHOUT_TIME: u32 = 2;
/// `CU_EVENT_INTERPROCESS`, which requires `CU_EVENT_DISABLE_TIMING`.
pub(crate) const BETWEEN_PROCESSES: u32 = 4;

exports! {
    cuEventCreate(out: Out<u64>, flags: u32) = create => "cuEventCreate" @ 2000;
    cuEventDestroy(event: u64) = destroy => "cuEventDestroy" @ 2000;
    cuEventDestroy_v2(event: u64) = destroy => "cuEventDestroy" @ 4000;
    cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) = elapsed => "cuEventElapsedTime" @ 2000;
    cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) = elapsed => "cuEventElapsedTime" @ 12080;
    cuEventQuery(event: u64) = query => "cuEventQuery" @ 2000;
    cuEventRecord(event: u64, stream: u64) = record => "cuEventRecord" @ 2000 | cuEventRecord_ptsz @ 7000;
    cuEventRecordWithFlags(event: u64, stream: u64, flags: u32) = record_with_flags => "cuEventRecordWithFlags" @ 11010 | cuEventRecordWithFlags_ptsz @ 11010;
    cuEventSynchronize(event: u64) = synchronize => "cuEventSynchronize" @ 2000;
}

/// Fails if there is no such event.
pub(crate) fn check(handle: u64) -> Outcome {
    event(handle).map(drop)
}

/// Records an event as complete now.
pub(crate) fn record_now(handle: u64) -> Outcome {
    let mut tables = tables();
    let event = tables.events.get_mut(&handle).ok_or(INVALID_HANDLE)?;
    event.recorded = Some(Instant::now());
    event.captured = None;
    Ok(())
}

fn event(handle: u64) -> Result<CudaEvent, CudaError> {
    tables().events.get(&handle).cloned().ok_or(INVALID_HANDLE)
}

fn create(out: Out<u64>, flags: u32) -> Outcome {
    out.check()?;
    current()?;
    let shares_timed = flags & BETWEEN_PROCESSES != 0 && flags & WITHOUT_TIME == 0;
    if flags > 7 || shares_timed {
        return Err(INVALID_VALUE);
    }
    let mut tables = tables();
    let handle = tables.fresh();
    tables.events.insert(
        handle,
        CudaEvent {
            flags,
            recorded: None,
            captured: None,
        },
    );
    out.put(handle)
}

fn destroy(handle: u64) -> Outcome {
    tables()
        .events
        .remove(&handle)
        .map(drop)
        .ok_or(INVALID_HANDLE)
}

fn record(handle: u64, on: u64) -> Outcome {
    record_with_flags(handle, on, 0)
}

fn record_with_flags(handle: u64, on: u64, flags: u32) -> Outcome {
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    stream(on)?;
    let captured = recorded(on)?;
    let mut tables = tables();
    let event = tables.events.get_mut(&handle).ok_or(INVALID_HANDLE)?;
    event.recorded = Some(Instant::now());
    event.captured = captured;
    Ok(())
}

/// What an event stands for in a capture.
pub(crate) fn captured_in(handle: u64) -> Result<Option<CapturedEvent>, CudaError> {
    Ok(event(handle)?.captured)
}

fn query(handle: u64) -> Outcome {
    rules::check_event(captured_in(handle)?)
}

fn synchronize(handle: u64) -> Outcome {
    query(handle)?;
    driver::synchronize()
}

fn elapsed(milliseconds: Out<f32>, start: u64, end: u64) -> Outcome {
    let moment = |handle| {
        let event = event(handle)?;
        event
            .recorded
            .filter(|_| event.flags & WITHOUT_TIME == 0)
            .ok_or(INVALID_HANDLE)
    };
    let (start, end) = (moment(start)?, moment(end)?);
    let forward = end.saturating_duration_since(start).as_secs_f32();
    let backward = start.saturating_duration_since(end).as_secs_f32();
    milliseconds.put((forward - backward) * 1000.0)
}
