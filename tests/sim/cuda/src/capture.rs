//! Capturing streams: what is asked of them becomes a graph. Here memory, launches, copies and fills do; copies of
//! arrays are done at once.
//!
//! A capture begins on one stream and spreads to every stream that waits for an event of it. What breaks one
//! is in [`rules`]: from then on its streams take no work, and ending it gives an error and no graph.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};

use crate::driver::tables;
use crate::error::{Error, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::graphs;
use crate::pointer::Out;
use crate::stream::{is_legacy, known};

pub(crate) mod rules;

/// `CUDA_ERROR_STREAM_CAPTURE_*`, `CUDA_ERROR_CAPTURED_EVENT` and `CUDA_ERROR_ILLEGAL_STATE`.
const UNSUPPORTED: Error = Error(900);
const INVALIDATED: Error = Error(901);
const MERGE: Error = Error(902);
const UNMATCHED: Error = Error(903);
const IMPLICIT: Error = Error(906);
const CAPTURED_EVENT: Error = Error(907);
const WRONG_THREAD: Error = Error(908);
const ILLEGAL_STATE: Error = Error(401);

exports! {
    cuStreamBeginCapture(stream: u64) = begin_v1 => "cuStreamBeginCapture" @ 10000 | cuStreamBeginCapture_ptsz @ 10000;
    cuStreamBeginCapture_v2(stream: u64, mode: u32) = begin => "cuStreamBeginCapture" @ 10010 | cuStreamBeginCapture_v2_ptsz @ 10010;
    cuStreamEndCapture(stream: u64, graph: Out<u64>) = end => "cuStreamEndCapture" @ 10000 | cuStreamEndCapture_ptsz @ 10000;
    cuStreamIsCapturing(stream: u64, status: Out<u32>) = is_capturing => "cuStreamIsCapturing" @ 10000 | cuStreamIsCapturing_ptsz @ 10000;
    cuThreadExchangeStreamCaptureMode(mode: Out<u32>) = exchange_mode => "cuThreadExchangeStreamCaptureMode" @ 10010;
}

/// `CUstreamCaptureMode`: of a capture, or of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

/// `CUstreamCaptureStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    None,
    Active,
    Invalidated,
}

/// The captures of a process, by the number of their graph.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    captures: HashMap<u64, Capture>,
    /// The capture that each stream takes part in.
    streams: HashMap<u64, u64>,
}

#[derive(Debug)]
struct Capture {
    mode: Mode,
    thread: ThreadId,
    /// The stream that it began on.
    origin: u64,
    status: Status,
}

thread_local! {
    /// Every thread starts in the global mode.
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// How many captures have begun and not ended.
/// Written by: beginnings and ends, with the tables locked. Read by: every call. Relaxed: a call that runs
/// beside a beginning may come before or after it.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

impl Mode {
    fn of(number: u32) -> Result<Self, Error> {
        match number {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(INVALID_VALUE),
        }
    }
}

impl Captures {
    fn of(&mut self, stream: u64) -> Option<(u64, &mut Capture)> {
        let graph = *self.streams.get(&stream)?;
        Some((graph, self.captures.get_mut(&graph)?))
    }

    /// Invalidates those that `breaks` says. True if there was any, broken already or not.
    fn invalidate(&mut self, breaks: impl Fn(&Capture) -> bool) -> bool {
        let broken = self.captures.values_mut().filter(|capture| breaks(capture));
        let broken = broken.map(|capture| capture.status = Status::Invalidated);
        broken.count() > 0
    }
}

/// The graph that the work of a stream becomes part of, if that is being captured.
pub(crate) fn captured(on: u64) -> Result<Option<u64>, Error> {
    match tables().captures.of(on) {
        None => Ok(None),
        Some((_, capture)) if capture.status == Status::Invalidated => Err(INVALIDATED),
        Some((graph, _)) => Ok(Some(graph)),
    }
}

/// Whether a stream is being captured, and the graph of that.
pub(crate) fn status(on: u64) -> Result<(Status, u64), Error> {
    known(on)?;
    // The null stream is asked about itself; that breaks nothing.
    if is_legacy(on) && rules::legacy_is_in_use(on)? {
        return Err(IMPLICIT);
    }
    let mut tables = tables();
    let found = tables.captures.of(on);
    Ok(found.map_or((Status::None, 0), |(graph, capture)| {
        (capture.status, graph)
    }))
}

/// The work of a stream is put behind an event that was recorded in a capture: it takes part in that now.
pub(crate) fn join(on: u64, graph: u64) -> Outcome {
    let mut tables = tables();
    let Some(capture) = tables.captures.captures.get(&graph) else {
        // The capture is over, and with it what the event stood for.
        return Err(CAPTURED_EVENT);
    };
    if capture.status == Status::Invalidated {
        return Err(INVALIDATED);
    }
    match tables.captures.streams.insert(on, graph) {
        Some(other) if other != graph => {
            tables.captures.streams.insert(on, other);
            Err(MERGE)
        }
        Some(_) | None => Ok(()),
    }
}

fn begin(on: u64, mode: u32) -> Outcome {
    known(on)?;
    let mode = Mode::of(mode)?;
    if is_legacy(on) {
        return Err(UNSUPPORTED);
    }
    if tables().captures.of(on).is_some() {
        return Err(ILLEGAL_STATE);
    }
    let graph = graphs::empty();
    let capture = Capture {
        mode,
        thread: thread::current().id(),
        origin: on,
        status: Status::Active,
    };
    let mut tables = tables();
    tables.captures.captures.insert(graph, capture);
    tables.captures.streams.insert(on, graph);
    UNDER_WAY.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

fn begin_v1(on: u64) -> Outcome {
    begin(on, 0)
}

/// What was invalidated ends as well, with an error and a null graph.
fn end(on: u64, out: Out<u64>) -> Outcome {
    out.check()?;
    known(on)?;
    let (graph, status) = {
        let mut tables = tables();
        let (graph, capture) = tables.captures.of(on).ok_or(ILLEGAL_STATE)?;
        if capture.origin != on {
            return Err(UNMATCHED);
        }
        if capture.mode != Mode::Relaxed && capture.thread != thread::current().id() {
            return Err(WRONG_THREAD);
        }
        let status = capture.status;
        tables.captures.captures.remove(&graph);
        tables.captures.streams.retain(|_, of| *of != graph);
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        (graph, status)
    };
    if status == Status::Invalidated {
        graphs::destroy(graph)?;
        out.put(0)?;
        return Err(INVALIDATED);
    }
    out.put(graph)
}

fn is_capturing(on: u64, out: Out<u32>) -> Outcome {
    out.check()?;
    out.put(status(on)?.0 as u32)
}

fn exchange_mode(place: Out<u32>) -> Outcome {
    let mode = Mode::of(place.read()?)?;
    place.put(MODE.replace(mode) as u32)
}
