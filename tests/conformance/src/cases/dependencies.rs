//! Dependencies between the nodes of graphs: explicit ones, and those of captured streams.

use std::ptr::{null, null_mut};

use crate::code::ResultCode;
use crate::layout::{AllocationNode, FillNode};
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB, must};

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
const GLOBAL: i32 = 0;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
const SET: u32 = 1;
/// More nodes than any graph of these cases has.
const ROOM: usize = 8;
/// The driver version with captures to an existing graph.
const CAPTURE_TO_GRAPH: i32 = 12030;
/// The driver version with the second `cuGraphExecUpdate`.
const SECOND_UPDATE: i32 = 12000;

/// The result of a query for nodes: the whole array, and the count.
fn asked(question: impl Fn(*mut usize, &mut usize) -> ResultCode) -> ([usize; ROOM], usize) {
    let (mut nodes, mut count) = ([usize::MAX; ROOM], ROOM);
    let code = question(nodes.as_mut_ptr(), &mut count);
    match code {
        ResultCode::SUCCESS => (nodes, count),
        _ => ([usize::MAX; ROOM], usize::MAX),
    }
}

/// The nodes of a query in any order. Unused entries are null.
fn set(nodes: &[usize]) -> (Vec<usize>, usize) {
    let mut all = [0; ROOM];
    all[..nodes.len()].copy_from_slice(nodes);
    all.sort_unstable();
    (all.to_vec(), nodes.len())
}

fn sorted((mut nodes, count): ([usize; ROOM], usize)) -> (Vec<usize>, usize) {
    nodes.sort_unstable();
    (nodes.to_vec(), count)
}

fn new_graph(session: &DriverSession) -> Result<usize, CaseError> {
    let mut graph = 0;
    let code = session.cuda.graph_create(Some(&mut graph), 0);
    must("cuGraphCreate", code)?;
    Ok(graph)
}

fn empty(session: &DriverSession, graph: usize, after: &[usize]) -> Result<usize, CaseError> {
    let mut node = 0;
    let cuda = &session.cuda;
    let code = cuda.graph_empty(Some(&mut node), graph, after.as_ptr(), after.len());
    must("cuGraphAddEmptyNode", code)?;
    Ok(node)
}

fn dependencies(session: &DriverSession, node: usize) -> (Vec<usize>, usize) {
    sorted(asked(|nodes, count| {
        session.cuda.node_dependencies(node, nodes, Some(count))
    }))
}

/// The edges of a graph, sorted.
fn edges(session: &DriverSession, graph: usize) -> Vec<(usize, usize)> {
    let (mut from, mut to, mut count) = ([0; ROOM], [0; ROOM], ROOM);
    let (starts, ends) = (from.as_mut_ptr(), to.as_mut_ptr());
    let code = session
        .cuda
        .graph_edges(graph, starts, ends, Some(&mut count));
    if !code.succeeded() {
        return vec![(usize::MAX, usize::MAX)];
    }
    let mut all: Vec<_> = from.into_iter().zip(to).take(count).collect();
    all.sort_unstable();
    all
}

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let cuda = &session.cuda;
    let graph = new_graph(&session)?;
    let first = empty(&session, graph, &[])?;
    let second = empty(&session, graph, &[first])?;
    let third = empty(&session, graph, &[])?;

    let seen = dependencies(&session, second);
    report.equals("a node names what it depends on", set(&[first]), seen);
    let mut count = 77;
    let code = cuda.node_dependencies(second, null_mut(), Some(&mut count));
    let seen = (code, count);
    report.equals("without an array, how many", (ResultCode::SUCCESS, 1), seen);
    let seen = sorted(asked(|nodes, count| {
        cuda.node_dependents(first, nodes, Some(count))
    }));
    report.equals("a node names what depends on it", set(&[second]), seen);
    let seen = sorted(asked(|nodes, count| {
        cuda.graph_roots(graph, nodes, Some(count))
    }));
    let roots = set(&[first, third]);
    report.equals("nodes that depend on nothing are roots", roots, seen);

    let code = cuda.graph_connect(graph, Some(&second), Some(&third), 1);
    report.equals("an edge is added", ResultCode::SUCCESS, code);
    let mut both = vec![(first, second), (second, third)];
    both.sort_unstable();
    let is_same = edges(&session, graph) == both;
    report.equals("a graph names its edges", true, is_same);
    let code = cuda.graph_connect(graph, Some(&second), Some(&third), 1);
    report.holds("not twice", !code.succeeded(), code);
    let code = cuda.graph_disconnect(graph, Some(&first), Some(&third), 1);
    let fact = "an edge that is not there is not removed";
    report.holds(fact, !code.succeeded(), code);

    let mut clone = 0;
    let code = cuda.graph_clone(Some(&mut clone), graph);
    must("cuGraphClone", code)?;
    let seen = edges(&session, clone).len();
    report.equals("a copy has as many edges", 2, seen);
    let mut copy = 0;
    let code = cuda.node_in_clone(Some(&mut copy), third, clone);
    let is_other = code.succeeded() && copy != third;
    report.equals("a copy has nodes of its own", true, is_other);
    let mut copied = 0;
    let code = cuda.node_in_clone(Some(&mut copied), second, clone);
    must("cuGraphNodeFindInClone", code)?;
    let is_same = dependencies(&session, copy) == set(&[copied]);
    report.equals("which depend on each other", true, is_same);
    let code = cuda.graph_connect(graph, Some(&first), Some(&copy), 1);
    let fact = "no edge goes to another graph";
    report.holds(fact, !code.succeeded(), code);

    let code = cuda.graph_disconnect(graph, Some(&second), Some(&third), 1);
    report.equals("an edge is removed", ResultCode::SUCCESS, code);
    let code = cuda.node_destroy(second);
    report.equals("a node is removed", ResultCode::SUCCESS, code);
    let seen = edges(&session, graph).len();
    report.equals("and its edges with it", 0, seen);
    let mut node = 0;
    let twice = [first, first];
    let code = cuda.graph_empty(Some(&mut node), graph, twice.as_ptr(), 2);
    let fact = "a node does not depend on the same one twice";
    report.holds(fact, !code.succeeded(), code);
    refusals(report, &session)
}

fn refusals(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let cuda = &session.cuda;
    let graph = new_graph(session)?;
    let first = empty(session, graph, &[])?;
    let second = empty(session, graph, &[first])?;
    let code = cuda.graph_connect(graph, Some(&second), Some(&first), 1);
    report.observed("a circle is closed", code);
    let mut exec = 0;
    let code = cuda.graph_instantiate(Some(&mut exec), graph, 0);
    let fact = "a circle is not made executable";
    report.observed(fact, code);

    let graph = new_graph(session)?;
    let first = empty(session, graph, &[])?;
    let mut node = 0;
    let mut allocation = AllocationNode::new(session.location(), MIB);
    let code = cuda.graph_alloc(
        Some(&mut node),
        graph,
        Some(&first),
        1,
        Some(&mut allocation),
    );
    must("cuGraphAddMemAllocNode", code)?;
    let code = cuda.graph_disconnect(graph, Some(&first), Some(&node), 1);
    let fact = "a graph that allocates keeps its edges";
    report.holds(fact, !code.succeeded(), code);
    let code = cuda.node_destroy(first);
    report.holds("and its nodes", !code.succeeded(), code);
    must("cuGraphDestroy", cuda.graph_destroy(graph))
}

/// Two streams, an event, and memory that is filled.
struct StreamPair {
    session: DriverSession,
    one: usize,
    two: usize,
    event: usize,
    memory: u64,
}

impl StreamPair {
    fn make() -> Result<Self, CaseError> {
        let session = DriverSession::start()?;
        let cuda = &session.cuda;
        let (mut one, mut two, mut event, mut memory) = (0, 0, 0, 0);
        for stream in [&mut one, &mut two] {
            must(
                "cuStreamCreate",
                cuda.stream_create(Some(stream), NON_BLOCKING),
            )?;
        }
        must("cuEventCreate", cuda.event_create(Some(&mut event), 0))?;
        must("cuMemAlloc", cuda.alloc(Some(&mut memory), MIB))?;
        Ok(Self {
            session,
            one,
            two,
            event,
            memory,
        })
    }

    /// Fills the memory on a stream.
    fn fill(&self, stream: usize, value: u8) -> Result<(), CaseError> {
        let cuda = &self.session.cuda;
        must(
            "cuMemsetD8Async",
            cuda.set_bytes_async(self.memory, value, MIB, stream),
        )
    }

    /// Makes one stream wait for another's work.
    fn follow(&self, behind: usize, stream: usize) -> Result<(), CaseError> {
        let cuda = &self.session.cuda;
        must("cuEventRecord", cuda.event_record(self.event, stream))?;
        must("cuStreamWaitEvent", cuda.stream_wait(behind, self.event, 0))
    }

    /// The graph that a stream is captured into, and the dependencies of its next node.
    fn next(&self, stream: usize) -> Result<(usize, Vec<usize>), CaseError> {
        let (mut status, mut id, mut graph, mut nodes, mut count) = (0, 0, 0, null(), 0);
        let code = self.session.cuda.capture_info(
            stream,
            Some(&mut status),
            Some(&mut id),
            Some(&mut graph),
            Some(&mut nodes),
            Some(&mut count),
        );
        must("cuStreamGetCaptureInfo", code)?;
        if count == 0 {
            return Ok((graph, Vec::new()));
        }
        // SAFETY: the driver guarantees that this many handles stay valid until the stream's next call.
        let nodes = unsafe { std::slice::from_raw_parts(nodes, count) };
        Ok((graph, nodes.to_vec()))
    }

    fn begin(&self) -> Result<(), CaseError> {
        let code = self.session.cuda.begin_capture(self.one, GLOBAL);
        must("cuStreamBeginCapture", code)
    }
}

pub(super) fn captured(report: &CaseReport) -> Result<(), CaseError> {
    let streams = StreamPair::make()?;
    let (session, cuda) = (&streams.session, &streams.session.cuda);
    let mut graph = 0;
    let code = cuda.update_capture(streams.one, null(), 0, SET);
    let fact = "no set of a stream that is not captured";
    report.equals(fact, ResultCode::ILLEGAL_STATE, code);

    streams.begin()?;
    streams.fill(streams.one, 1)?;
    streams.follow(streams.two, streams.one)?;
    streams.fill(streams.two, 2)?;
    let code = cuda.end_capture(streams.one, Some(&mut graph));
    let fact = "another stream's work must be joined";
    report.equals(fact, ResultCode::CAPTURE_UNJOINED, code);

    streams.begin()?;
    let seen = streams.next(streams.one)?.1.len();
    report.equals("the first node depends on nothing", 0, seen);
    streams.fill(streams.one, 1)?;
    let first = streams.next(streams.one)?.1;
    report.equals("the next one on what was captured", 1, first.len());
    streams.follow(streams.two, streams.one)?;
    let is_same = streams.next(streams.two)?.1 == first;
    let fact = "a stream behind an event depends on what the event does";
    report.equals(fact, true, is_same);
    streams.fill(streams.two, 2)?;
    let second = streams.next(streams.two)?.1;
    streams.follow(streams.one, streams.two)?;
    let next = streams.next(streams.one)?.1;
    let has_both = second.iter().all(|node| next.contains(node));
    report.equals("a join adds the other stream's", true, has_both);
    let code = cuda.end_capture(streams.one, Some(&mut graph));
    must("cuStreamEndCapture", code)?;
    let is_same = edges(session, graph) == [(first[0], second[0])];
    report.equals("the graph has the edge", true, is_same);

    streams.begin()?;
    streams.fill(streams.one, 1)?;
    let code = cuda.update_capture(streams.one, null(), 0, SET);
    report.equals("a set can be emptied", ResultCode::SUCCESS, code);
    streams.fill(streams.one, 2)?;
    let code = cuda.end_capture(streams.one, Some(&mut graph));
    let fact = "what was taken out need not be joined";
    report.equals(fact, ResultCode::SUCCESS, code);
    let seen = edges(session, graph).len();
    report.equals("and nothing depends on it", 0, seen);
    order(report, &streams, graph)?;

    explicit(report, &streams)?;
    let mut version = 0;
    let code = cuda.driver_version(Some(&mut version));
    must("cuDriverGetVersion", code)?;
    if version >= CAPTURE_TO_GRAPH {
        to_graph(report, &streams)
    } else {
        Ok(())
    }
}

/// If the edge says so, a launch does the second fill before the first.
fn order(report: &CaseReport, streams: &StreamPair, graph: usize) -> Result<(), CaseError> {
    let cuda = &streams.session.cuda;
    let (nodes, count) = asked(|nodes, count| cuda.graph_nodes(graph, nodes, Some(count)));
    report.equals("a graph has both fills", 2, count);
    for (from, to) in [(1, 0), (0, 1)] {
        let (mut copy, mut ends, mut exec) = (0, [0; 2], 0);
        let code = cuda.graph_clone(Some(&mut copy), graph);
        must("cuGraphClone", code)?;
        for (end, node) in ends.iter_mut().zip([nodes[from], nodes[to]]) {
            let code = cuda.node_in_clone(Some(end), node, copy);
            must("cuGraphNodeFindInClone", code)?;
        }
        let code = cuda.graph_connect(copy, Some(&ends[0]), Some(&ends[1]), 1);
        must("cuGraphAddDependencies", code)?;
        let code = cuda.graph_instantiate(Some(&mut exec), copy, 0);
        must("cuGraphInstantiate", code)?;
        let seen = streams.launched(exec)?;
        let last = streams.value_of(graph, nodes[to])?;
        report.equals("a launch keeps to an edge", last, seen);
    }
    Ok(())
}

impl StreamPair {
    /// The value that a fill node writes, found by launching a copy of only this node.
    fn value_of(&self, graph: usize, node: usize) -> Result<u8, CaseError> {
        let cuda = &self.session.cuda;
        let (mut copy, mut exec) = (0, 0);
        must("cuGraphClone", cuda.graph_clone(Some(&mut copy), graph))?;
        let (nodes, count) = asked(|nodes, count| cuda.graph_nodes(graph, nodes, Some(count)));
        for other in nodes.into_iter().take(count.min(ROOM)) {
            let mut copied = 0;
            let code = cuda.node_in_clone(Some(&mut copied), other, copy);
            must("cuGraphNodeFindInClone", code)?;
            if other != node {
                must("cuGraphDestroyNode", cuda.node_destroy(copied))?;
            }
        }
        let code = cuda.graph_instantiate(Some(&mut exec), copy, 0);
        must("cuGraphInstantiate", code)?;
        self.launched(exec)
    }

    /// The memory's content after a launch.
    fn launched(&self, exec: usize) -> Result<u8, CaseError> {
        let (cuda, mut seen) = (&self.session.cuda, [0_u8; 1]);
        must("cuGraphLaunch", cuda.graph_launch(exec, self.one))?;
        must("cuCtxSynchronize", cuda.synchronize())?;
        let code = cuda.copy_out(seen.as_mut_ptr().cast(), self.memory, 1);
        must("cuMemcpyDtoH", code)?;
        Ok(seen[0])
    }
}

/// Two fill nodes that a program adds, changed by parameters and by another graph.
fn explicit(report: &CaseReport, streams: &StreamPair) -> Result<(), CaseError> {
    let (session, cuda) = (&streams.session, &streams.session.cuda);
    let mut context = 0;
    let code = cuda.context_current(Some(&mut context));
    must("cuCtxGetCurrent", code)?;
    let make = |first, second| -> Result<(usize, [usize; 2]), CaseError> {
        let (graph, mut nodes) = (new_graph(session)?, [0; 2]);
        let fill = FillNode::new(streams.memory, first, MIB);
        let [one, two] = &mut nodes;
        let code = cuda.graph_fill(Some(one), graph, None, 0, Some(&fill), context);
        must("cuGraphAddMemsetNode", code)?;
        let fill = FillNode::new(streams.memory, second, MIB);
        let code = cuda.graph_fill(Some(two), graph, Some(one), 1, Some(&fill), context);
        must("cuGraphAddMemsetNode", code)?;
        Ok((graph, nodes))
    };
    let (graph, [_, last]) = make(3, 4)?;
    let mut exec = 0;
    let code = cuda.graph_instantiate(Some(&mut exec), graph, 0);
    must("cuGraphInstantiate", code)?;
    let fact = "fills are done one behind the other";
    report.equals(fact, 4, streams.launched(exec)?);
    let fill = FillNode::new(streams.memory, 5, MIB);
    let code = cuda.exec_fill(exec, last, Some(&fill), context);
    must("cuGraphExecMemsetNodeSetParams", code)?;
    report.equals("a fill is changed", 5, streams.launched(exec)?);

    let mut version = 0;
    let code = cuda.driver_version(Some(&mut version));
    must("cuDriverGetVersion", code)?;
    if version < SECOND_UPDATE {
        return Ok(());
    }
    let mut info = [0; 3];
    let code = cuda.exec_update(exec, make(6, 7)?.0, Some(&mut info));
    must("cuGraphExecUpdate", code)?;
    let fact = "a graph is changed by one of the same shape";
    report.equals(fact, 7, streams.launched(exec)?);
    let other = new_graph(session)?;
    let code = cuda.exec_update(exec, other, Some(&mut info));
    let fact = "and not by one of another";
    report.equals(fact, ResultCode::UPDATE_FAILURE, code);
    report.equals("it does what it did", 7, streams.launched(exec)?);
    let code = cuda.exec_fill(exec, last, Some(&fill), context);
    must("cuGraphExecMemsetNodeSetParams", code)?;
    let fact = "its nodes are still those of the first graph";
    report.equals(fact, 5, streams.launched(exec)?);
    Ok(())
}

fn to_graph(report: &CaseReport, streams: &StreamPair) -> Result<(), CaseError> {
    let (session, cuda) = (&streams.session, &streams.session.cuda);
    let graph = new_graph(session)?;
    let first = empty(session, graph, &[])?;
    let code = cuda.begin_capture_to(streams.one, graph, Some(&first), null(), 1, GLOBAL);
    report.equals("a capture goes to a graph", ResultCode::SUCCESS, code);
    let (into, next) = streams.next(streams.one)?;
    report.equals("it is that graph", true, into == graph);
    let is_same = next == [first];
    report.equals("behind the node that was named", true, is_same);
    streams.fill(streams.one, 3)?;
    let mut exec = 0;
    let code = cuda.graph_instantiate(Some(&mut exec), graph, 0);
    let fact = "it is not executable before the end";
    report.holds(fact, !code.succeeded(), code);
    let mut ended = 0;
    let code = cuda.end_capture(streams.one, Some(&mut ended));
    must("cuStreamEndCapture", code)?;
    report.equals("the end gives the same graph", true, ended == graph);
    let seen: Vec<usize> = (edges(session, graph).iter().map(|(from, _)| *from)).collect();
    report.equals("with the edge", true, seen == [first]);
    let code = cuda.graph_instantiate(Some(&mut exec), graph, 0);
    report.equals("it is executable then", ResultCode::SUCCESS, code);
    Ok(())
}
