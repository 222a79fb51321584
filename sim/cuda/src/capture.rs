//! Stream capture: work that is given to a captured stream becomes nodes of a graph. Memory, launches, copies and fills
//! are captured; copies of arrays are done at once.
//!
//! A capture begins on one stream and spreads to every stream that waits for an event of the capture. Each stream has a
//! dependency set for its next node. At the end, the first stream must depend on the work of all others. [`rules`] has
//! what invalidates a capture: from then on its streams take no work, and ending it gives an error and no graph.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};

use crate::driver::tables;
use crate::edges::{self, EdgeData, NodeDependency, NodeInsertion};
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::graphs;
use crate::pointer::{In, Out};
use crate::stream::{is_legacy, known};

pub(crate) mod rules;

/// `CUDA_ERROR_STREAM_CAPTURE_*`, `CUDA_ERROR_CAPTURED_EVENT` and `CUDA_ERROR_ILLEGAL_STATE`.
const UNSUPPORTED: CudaError = CudaError(900);
const INVALIDATED: CudaError = CudaError(901);
const MERGE: CudaError = CudaError(902);
const UNMATCHED: CudaError = CudaError(903);
const UNJOINED: CudaError = CudaError(904);
const IMPLICIT: CudaError = CudaError(906);
const CAPTURED_EVENT: CudaError = CudaError(907);
const WRONG_THREAD: CudaError = CudaError(908);
const ILLEGAL_STATE: CudaError = CudaError(401);
/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`; zero adds.
const SET_DEPENDENCIES: u32 = 1;

exports! {
    cuStreamBeginCapture(stream: u64) = begin_v1 => "cuStreamBeginCapture" @ 10000 | cuStreamBeginCapture_ptsz @ 10000;
    cuStreamBeginCapture_v2(stream: u64, mode: u32) = begin => "cuStreamBeginCapture" @ 10010 | cuStreamBeginCapture_v2_ptsz @ 10010;
    cuStreamEndCapture(stream: u64, graph: Out<u64>) = end => "cuStreamEndCapture" @ 10000 | cuStreamEndCapture_ptsz @ 10000;
    cuStreamIsCapturing(stream: u64, status: Out<u32>) = is_capturing => "cuStreamIsCapturing" @ 10000 | cuStreamIsCapturing_ptsz @ 10000;
    cuStreamBeginCaptureToGraph(stream: u64, graph: u64, nodes: In<u64>, data: In<EdgeData>, count: usize, mode: u32) = begin_to_graph => "cuStreamBeginCaptureToGraph" @ 12030 | cuStreamBeginCaptureToGraph_ptsz @ 12030;
    cuStreamUpdateCaptureDependencies(stream: u64, nodes: In<u64>, count: usize, flags: u32) = update_v1 => "cuStreamUpdateCaptureDependencies" @ 11030 | cuStreamUpdateCaptureDependencies_ptsz @ 11030;
    cuStreamUpdateCaptureDependencies_v2(stream: u64, nodes: In<u64>, data: In<EdgeData>, count: usize, flags: u32) = update => "cuStreamUpdateCaptureDependencies" @ 12030 | cuStreamUpdateCaptureDependencies_v2_ptsz @ 12030;
    cuThreadExchangeStreamCaptureMode(mode: Out<u32>) = exchange_mode => "cuThreadExchangeStreamCaptureMode" @ 10010;
}

/// `CUstreamCaptureMode`: of a capture, or of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CaptureMode {
    Global,
    ThreadLocal,
    Relaxed,
}

/// `CUstreamCaptureStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaptureStatus {
    None,
    Active,
    Invalidated,
}

/// The captures of a process, by their ids.
#[derive(Debug, Default)]
pub(crate) struct StreamCaptures {
    captures: HashMap<u64, StreamCapture>,
    streams: HashMap<u64, CapturedStream>,
}

/// A captured stream and the dependency set of its next node: nodes, and one edge data entry per node. Programs are
/// given the addresses of both.
#[derive(Debug, Default)]
struct CapturedStream {
    capture: u64,
    nodes: Vec<u64>,
    data: Vec<EdgeData>,
}

/// What an event that was recorded in a capture stands for.
#[derive(Debug, Clone)]
pub(crate) struct CapturedEvent {
    pub(crate) capture: u64,
    dependencies: Vec<NodeDependency>,
}

/// What a program is told about a stream's capture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CaptureInfo {
    pub(crate) status: CaptureStatus,
    pub(crate) id: u64,
    pub(crate) graph: u64,
    /// The addresses of the next node's dependencies and of their edge data. Valid until the set changes.
    pub(crate) nodes: u64,
    pub(crate) data: u64,
    pub(crate) count: usize,
    /// Whether any edge data is not the default.
    pub(crate) is_annotated: bool,
}

#[derive(Debug)]
struct StreamCapture {
    mode: CaptureMode,
    thread: ThreadId,
    graph: u64,
    /// Whether the capture created the graph, so that the graph is destroyed if the capture fails.
    is_own: bool,
    /// Nodes that the program removed from a stream's dependency set. They need not be joined.
    dropped: Vec<u64>,
    /// The stream that the capture began on.
    origin: u64,
    status: CaptureStatus,
}

thread_local! {
    /// Every thread starts in global mode.
    static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// The number of captures that have begun and not ended.
/// Written by: begin and end of a capture, with the tables locked. Read by: every call. Relaxed: a call that runs
/// beside a beginning may come before or after it.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

impl CaptureMode {
    fn of(number: u32) -> Result<Self, CudaError> {
        match number {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(INVALID_VALUE),
        }
    }
}

impl CapturedStream {
    fn dependencies(&self) -> Vec<NodeDependency> {
        let pairs = self.nodes.iter().zip(&self.data);
        let dependencies = pairs.map(|(node, data)| NodeDependency {
            node: *node,
            data: *data,
        });
        dependencies.collect()
    }

    /// Adds the dependencies that are not in the set yet.
    fn extend(&mut self, dependencies: &[NodeDependency]) {
        for new in dependencies {
            if !self.dependencies().contains(new) {
                self.nodes.push(new.node);
                self.data.push(new.data);
            }
        }
    }
}

impl StreamCaptures {
    fn of(&mut self, stream: u64) -> Option<(u64, &mut StreamCapture)> {
        let id = self.streams.get(&stream)?.capture;
        Some((id, self.captures.get_mut(&id)?))
    }

    /// Makes `node` the only dependency of the stream's next node.
    pub(crate) fn advance(&mut self, stream: u64, node: u64) {
        if let Some(participant) = self.streams.get_mut(&stream) {
            participant.nodes = vec![node];
            participant.data = vec![EdgeData::default()];
        }
    }

    /// Whether any capture adds to the graph.
    pub(crate) fn go_to(&self, graph: u64) -> bool {
        self.captures.values().any(|capture| capture.graph == graph)
    }

    /// The last nodes of the capture's streams: those of the origin and those of the others.
    fn ends(&self, id: u64, origin: u64) -> (Vec<u64>, Vec<u64>) {
        let (mut first, mut others) = (Vec::new(), Vec::new());
        for (stream, participant) in &self.streams {
            match (participant.capture == id, *stream == origin) {
                (true, true) => first.extend(&participant.nodes),
                (true, false) => others.extend(&participant.nodes),
                (false, _) => {}
            }
        }
        (first, others)
    }

    /// Invalidates the captures that `breaks` selects. True if it selected any, already invalid or not.
    fn invalidate(&mut self, breaks: impl Fn(&StreamCapture) -> bool) -> bool {
        let broken = self.captures.values_mut().filter(|capture| breaks(capture));
        let broken = broken.map(|capture| capture.status = CaptureStatus::Invalidated);
        broken.count() > 0
    }
}

/// Where the stream's work goes if the stream is being captured.
pub(crate) fn captured(on: u64) -> Result<Option<NodeInsertion>, CudaError> {
    let mut tables = tables();
    let graph = match tables.captures.of(on) {
        None => return Ok(None),
        Some((_, capture)) if capture.status == CaptureStatus::Invalidated => {
            return Err(INVALIDATED);
        }
        Some((_, capture)) => capture.graph,
    };
    let participant = tables.captures.streams.get(&on);
    Ok(participant.map(|participant| NodeInsertion {
        graph,
        dependencies: participant.dependencies(),
        stream: Some(on),
    }))
}

/// What an event that is recorded now stands for.
pub(crate) fn recorded(on: u64) -> Result<Option<CapturedEvent>, CudaError> {
    let Some(place) = captured(on)? else {
        return Ok(None);
    };
    let id = tables().captures.of(on).map(|(id, _)| id);
    Ok(id.map(|capture| CapturedEvent {
        capture,
        dependencies: place.dependencies,
    }))
}

/// The capture status of a stream.
pub(crate) fn description(on: u64) -> Result<CaptureInfo, CudaError> {
    known(on)?;
    // Asking the null stream about itself does not invalidate a capture.
    if is_legacy(on) && rules::legacy_is_in_use(on)? {
        return Err(IMPLICIT);
    }
    let mut tables = tables();
    let found = tables.captures.of(on);
    let found = found.map(|(id, capture)| (id, capture.graph, capture.status));
    let participant = tables.captures.streams.get(&on);
    let (Some((id, graph, status)), Some(participant)) = (found, participant) else {
        return Ok(CaptureInfo {
            status: CaptureStatus::None,
            id: 0,
            graph: 0,
            nodes: 0,
            data: 0,
            count: 0,
            is_annotated: false,
        });
    };
    let mut data = participant.data.iter();
    Ok(CaptureInfo {
        status,
        id,
        graph,
        nodes: participant.nodes.as_ptr().expose_provenance() as u64,
        data: participant.data.as_ptr().expose_provenance() as u64,
        count: participant.nodes.len(),
        is_annotated: data.any(|data| *data != EdgeData::default()),
    })
}

/// Makes a stream wait for an event of a capture. The stream joins that capture.
pub(crate) fn join(on: u64, event: &CapturedEvent) -> Outcome {
    let mut tables = tables();
    let Some(capture) = tables.captures.captures.get(&event.capture) else {
        // The capture is over, so the event no longer stands for anything.
        return Err(CAPTURED_EVENT);
    };
    if capture.status == CaptureStatus::Invalidated {
        return Err(INVALIDATED);
    }
    let participant = tables.captures.streams.entry(on).or_insert(CapturedStream {
        capture: event.capture,
        ..CapturedStream::default()
    });
    if participant.capture != event.capture {
        return Err(MERGE);
    }
    participant.extend(&event.dependencies);
    Ok(())
}

/// Begins to capture into a graph, or into a new one.
fn start(on: u64, mode: u32, into: Option<(u64, Vec<NodeDependency>)>) -> Outcome {
    known(on)?;
    let mode = CaptureMode::of(mode)?;
    if is_legacy(on) {
        return Err(UNSUPPORTED);
    }
    if tables().captures.of(on).is_some() {
        return Err(ILLEGAL_STATE);
    }
    let is_own = into.is_none();
    let (graph, dependencies) = into.unwrap_or_else(|| (graphs::empty(), Vec::new()));
    let capture = StreamCapture {
        mode,
        thread: thread::current().id(),
        graph,
        is_own,
        dropped: Vec::new(),
        origin: on,
        status: CaptureStatus::Active,
    };
    let mut tables = tables();
    let id = tables.fresh();
    let mut participant = CapturedStream {
        capture: id,
        ..CapturedStream::default()
    };
    participant.extend(&dependencies);
    tables.captures.captures.insert(id, capture);
    tables.captures.streams.insert(on, participant);
    UNDER_WAY.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

fn begin(on: u64, mode: u32) -> Outcome {
    start(on, mode, None)
}

fn begin_v1(on: u64) -> Outcome {
    begin(on, 0)
}

fn begin_to_graph(
    on: u64,
    graph: u64,
    nodes: In<u64>,
    data: In<EdgeData>,
    count: usize,
    mode: u32,
) -> Outcome {
    graphs::nodes_of(graph)?;
    let dependencies = NodeDependency::named(graph, nodes, data, count)?;
    start(on, mode, Some((graph, dependencies)))
}

/// Ends the capture. An invalidated one also ends, with an error and a null graph.
fn end(on: u64, out: Out<u64>) -> Outcome {
    out.check()?;
    known(on)?;
    let (capture, is_joined) = {
        let mut tables = tables();
        let (id, capture) = tables.captures.of(on).ok_or(ILLEGAL_STATE)?;
        if capture.origin != on {
            return Err(UNMATCHED);
        }
        if capture.mode != CaptureMode::Relaxed && capture.thread != thread::current().id() {
            return Err(WRONG_THREAD);
        }
        let (first, others) = tables.captures.ends(id, on);
        let capture = tables.captures.captures.remove(&id).ok_or(ILLEGAL_STATE)?;
        tables.captures.streams.retain(|_, of| of.capture != id);
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        let joined = first.into_iter().chain(capture.dropped.iter().copied());
        let edges = tables.graphs.edges_mut(capture.graph);
        let found = edges.map(|edges| edges::reachable(edges, joined));
        let is_joined = found.is_ok_and(|found| others.iter().all(|node| found.contains(node)));
        (capture, is_joined)
    };
    let ended = match (capture.status, is_joined) {
        (CaptureStatus::Invalidated, _) => Err(INVALIDATED),
        (_, false) => Err(UNJOINED),
        (_, true) => return out.put(capture.graph),
    };
    if capture.is_own {
        graphs::destroy(capture.graph)?;
    }
    out.put(0)?;
    ended
}

/// `cuStreamUpdateCaptureDependencies`: adds to a stream's dependency set, or replaces it.
fn update(on: u64, nodes: In<u64>, data: In<EdgeData>, count: usize, flags: u32) -> Outcome {
    known(on)?;
    let graph = {
        let mut tables = tables();
        let (_, capture) = tables.captures.of(on).ok_or(ILLEGAL_STATE)?;
        if capture.status == CaptureStatus::Invalidated {
            return Err(INVALIDATED);
        }
        capture.graph
    };
    let dependencies = NodeDependency::named(graph, nodes, data, count)?;
    if flags > SET_DEPENDENCIES {
        return Err(INVALID_VALUE);
    }
    let mut tables = tables();
    let participant = tables.captures.streams.get_mut(&on);
    let participant = participant.ok_or(ILLEGAL_STATE)?;
    let mut dropped = Vec::new();
    if flags == SET_DEPENDENCIES {
        dropped.append(&mut participant.nodes);
        participant.data.clear();
    }
    participant.extend(&dependencies);
    if let Some((_, capture)) = tables.captures.of(on) {
        capture.dropped.extend(dropped);
    }
    Ok(())
}

fn update_v1(on: u64, nodes: In<u64>, count: usize, flags: u32) -> Outcome {
    update(on, nodes, In::null(), count, flags)
}

fn is_capturing(on: u64, out: Out<u32>) -> Outcome {
    out.check()?;
    out.put(description(on)?.status as u32)
}

fn exchange_mode(place: Out<u32>) -> Outcome {
    let mode = CaptureMode::of(place.read()?)?;
    place.put(MODE.replace(mode) as u32)
}
