//! Graph nodes: their parameters, read and changed, and what each does at a launch.

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::code::ResultCode;
use crate::layout::{FillNode, HostNode, KernelNode};
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB, must};

/// `CU_GRAPH_NODE_TYPE_WAIT_EVENT` and `_EVENT_RECORD`.
const WAIT: u32 = 6;
const RECORD: u32 = 7;
/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC` and `CU_GRAPH_USER_OBJECT_MOVE`.
const NO_SYNC: u32 = 1;
const MOVE: u32 = 1;

/// How often a graph called the host, and how many user objects were destroyed.
static CALLS: AtomicU32 = AtomicU32::new(0);
static ENDS: AtomicU32 = AtomicU32::new(0);

extern "C" fn called(_: *mut c_void) {
    CALLS.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn ended(_: *mut c_void) {
    ENDS.fetch_add(1, Ordering::SeqCst);
}

fn executable(session: &DriverSession, graph: usize) -> Result<usize, CaseError> {
    let mut exec = 0;
    let code = session.cuda.graph_instantiate(Some(&mut exec), graph, 0);
    must("cuGraphInstantiateWithFlags", code)?;
    Ok(exec)
}

fn launch(session: &DriverSession, exec: usize) -> Result<(), CaseError> {
    must("cuGraphLaunch", session.cuda.graph_launch(exec, 0))?;
    must("cuCtxSynchronize", session.cuda.synchronize())
}

fn new_graph(session: &DriverSession) -> Result<usize, CaseError> {
    let mut graph = 0;
    must(
        "cuGraphCreate",
        session.cuda.graph_create(Some(&mut graph), 0),
    )?;
    Ok(graph)
}

fn first_byte(session: &DriverSession, memory: u64) -> Result<u8, CaseError> {
    let mut seen = [0_u8; 1];
    let code = session.cuda.copy_out(seen.as_mut_ptr().cast(), memory, 1);
    must("cuMemcpyDtoH", code)?;
    Ok(seen[0])
}

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let before = session.usage()?;
    let memory = session.alloc(MIB)?;
    fills(report, &session, memory)?;
    kernels(report, &session)?;
    calls(report, &session)?;
    children(report, &session, memory)?;
    objects(report, &session)?;
    must("cuMemFree_v2", session.cuda.free(memory))?;
    report.observed("after all that, NVML counts", session.usage()? - before);
    Ok(())
}

fn fills(report: &CaseReport, session: &DriverSession, memory: u64) -> Result<(), CaseError> {
    let (cuda, mut context) = (&session.cuda, 0);
    must("cuCtxGetCurrent", cuda.context_current(Some(&mut context)))?;
    let graph = new_graph(session)?;
    let (mut node, made) = (0, FillNode::new(memory, 3, 64));
    let code = cuda.graph_fill(Some(&mut node), graph, None, 0, Some(&made), context);
    must("cuGraphAddMemsetNode", code)?;
    let mut seen = FillNode::new(0, 0, 0);
    let code = cuda.node_fill(node, Some(&mut seen));
    must("cuGraphMemsetNodeGetParams", code)?;
    let parts = |fill: FillNode| (fill.address, fill.value, fill.width);
    let fact = "a fill says what it fills";
    report.equals(fact, parts(made), parts(seen));
    let code = cuda.node_set_fill(node, Some(&FillNode::new(memory, 5, 64)));
    must("cuGraphMemsetNodeSetParams", code)?;
    let exec = executable(session, graph)?;
    launch(session, exec)?;
    let fact = "a fill that was changed fills otherwise";
    report.equals(fact, 5, first_byte(session, memory)?);

    let code = cuda.set_bytes(memory, 1, 64);
    must("cuMemsetD8", code)?;
    let code = cuda.exec_enable(exec, node, 0);
    report.equals("a node is switched off", ResultCode::SUCCESS, code);
    let mut is_enabled = 77;
    let code = cuda.exec_enabled(exec, node, Some(&mut is_enabled));
    report.equals("and says so", (ResultCode::SUCCESS, 0), (code, is_enabled));
    launch(session, exec)?;
    report.equals("it does nothing", 1, first_byte(session, memory)?);
    must("cuGraphNodeSetEnabled", cuda.exec_enable(exec, node, 1))?;
    launch(session, exec)?;
    report.equals("switched on it fills", 5, first_byte(session, memory)?);
    let mut flags = 77;
    let code = cuda.exec_flags(exec, Some(&mut flags));
    let fact = "a graph was made executable without flags";
    report.equals(fact, (ResultCode::SUCCESS, 0), (code, flags));

    let path = std::env::temp_dir().join(format!("graph-{}.dot", std::process::id()));
    let name = CString::new(path.display().to_string()).unwrap_or_default();
    let code = cuda.graph_print(graph, name.as_ptr(), 0);
    let text = std::fs::read_to_string(&path)?;
    let _ = std::fs::remove_file(path);
    let is_text = code.succeeded() && text.trim_start().starts_with("digraph");
    report.equals("it is written as a text", true, is_text);
    must("cuGraphExecDestroy", cuda.exec_destroy(exec))?;
    must("cuGraphDestroy", cuda.graph_destroy(graph))
}

fn kernels(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let image =
        c".version 6.4\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n";
    let (cuda, mut module, mut function) = (&session.cuda, 0, 0);
    let code = cuda.module_load(Some(&mut module), image.as_ptr());
    must("cuModuleLoadData", code)?;
    let code = cuda.module_function(Some(&mut function), module, c"nothing".as_ptr());
    must("cuModuleGetFunction", code)?;
    let graph = new_graph(session)?;
    let (mut node, made) = (0, KernelNode::new(function, 64));
    let code = cuda.graph_kernel(Some(&mut node), graph, None, 0, Some(&made));
    must("cuGraphAddKernelNode_v2", code)?;
    let mut seen = KernelNode::new(0, 0);
    let code = cuda.node_kernel(node, Some(&mut seen));
    must("cuGraphKernelNodeGetParams_v2", code)?;
    report.equals("a kernel says how it is launched", made.shape, seen.shape);
    must("cuGraphDestroy", cuda.graph_destroy(graph))?;
    must("cuModuleUnload", cuda.module_unload(module))
}

/// Event nodes and host functions.
fn calls(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let (cuda, graph) = (&session.cuda, new_graph(session)?);
    let mut events = [0; 3];
    for event in &mut events {
        must("cuEventCreate", cuda.event_create(Some(event), 0))?;
    }
    let [one, other, start] = events;
    let (mut record, mut wait, mut host) = (0, 0, 0);
    let code = cuda.graph_record(Some(&mut record), graph, None, 0, one);
    report.equals("a node records an event", ResultCode::SUCCESS, code);
    let code = cuda.graph_wait(Some(&mut wait), graph, Some(&record), 1, one);
    report.equals("a node waits for one", ResultCode::SUCCESS, code);
    let call = HostNode {
        function: called,
        data: std::ptr::null_mut(),
    };
    let code = cuda.graph_host(Some(&mut host), graph, Some(&wait), 1, Some(&call));
    must("cuGraphAddHostNode", code)?;
    let mut kinds = [77; 2];
    for (kind, node) in kinds.iter_mut().zip([wait, record]) {
        must("cuGraphNodeGetType", cuda.node_type(node, Some(kind)))?;
    }
    report.equals("each is of its kind", [WAIT, RECORD], kinds);
    let mut named = [0; 2];
    let code = cuda.node_recorded(record, Some(&mut named[0]));
    must("cuGraphEventRecordNodeGetEvent", code)?;
    let code = cuda.node_awaited(wait, Some(&mut named[1]));
    must("cuGraphEventWaitNodeGetEvent", code)?;
    report.equals("each names its event", true, named == [one, one]);
    let code = cuda.node_recorded(wait, Some(&mut named[0]));
    let fact = "one that waits records nothing";
    report.holds(fact, !code.succeeded(), code);

    let exec = executable(session, graph)?;
    must("cuEventRecord", cuda.event_record(start, 0))?;
    launch(session, exec)?;
    report.equals("the host is called", 1, CALLS.load(Ordering::SeqCst));
    let mut time = -1.0;
    let code = cuda.event_elapsed(Some(&mut time), start, one);
    let fact = "the event was recorded by the launch";
    report.equals(fact, (ResultCode::SUCCESS, true), (code, time >= 0.0));
    let code = cuda.exec_record(exec, record, other);
    report.equals("another is recorded", ResultCode::SUCCESS, code);
    launch(session, exec)?;
    let code = cuda.event_elapsed(Some(&mut time), start, other);
    report.equals("by the next launch", ResultCode::SUCCESS, code);
    let code = cuda.node_recorded(record, Some(&mut named[0]));
    let is_same = (code, named[0] == one) == (ResultCode::SUCCESS, true);
    report.equals("the node is as it was", true, is_same);
    must(
        "cuGraphEventRecordNodeSetEvent",
        cuda.node_set_recorded(record, other),
    )?;
    must("cuGraphExecDestroy", cuda.exec_destroy(exec))?;
    must("cuGraphDestroy", cuda.graph_destroy(graph))
}

/// A child graph is a copy.
fn children(report: &CaseReport, session: &DriverSession, memory: u64) -> Result<(), CaseError> {
    let (cuda, mut context) = (&session.cuda, 0);
    must("cuCtxGetCurrent", cuda.context_current(Some(&mut context)))?;
    let (graph, inner) = (new_graph(session)?, new_graph(session)?);
    let (mut fill, mut child, mut inside) = (0, 0, 0);
    let made = FillNode::new(memory, 7, 64);
    let code = cuda.graph_fill(Some(&mut fill), inner, None, 0, Some(&made), context);
    must("cuGraphAddMemsetNode", code)?;
    let code = cuda.graph_child(Some(&mut child), graph, None, 0, inner);
    must("cuGraphAddChildGraphNode", code)?;
    let code = cuda.node_child(child, Some(&mut inside));
    must("cuGraphChildGraphNodeGetGraph", code)?;
    report.equals("a node has a graph of its own", true, inside != inner);
    must("cuGraphDestroy", cuda.graph_destroy(inner))?;
    let exec = executable(session, graph)?;
    launch(session, exec)?;
    let fact = "it does what the other did";
    report.equals(fact, 7, first_byte(session, memory)?);
    must("cuGraphExecDestroy", cuda.exec_destroy(exec))?;
    must("cuGraphDestroy", cuda.graph_destroy(graph))
}

/// A user object with references from a graph and from its executable graph.
fn objects(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let (cuda, graph) = (&session.cuda, new_graph(session)?);
    let (mut object, mut node, nothing) = (0, 0, std::ptr::null_mut());
    let code = cuda.graph_empty(Some(&mut node), graph, std::ptr::null(), 0);
    must("cuGraphAddEmptyNode", code)?;
    let code = cuda.object_create(Some(&mut object), nothing, ended, 2, NO_SYNC);
    must("cuUserObjectCreate", code)?;
    let code = cuda.graph_retain(graph, object, 1, MOVE);
    must("cuGraphRetainUserObject", code)?;
    let exec = executable(session, graph)?;
    must("cuUserObjectRelease", cuda.object_release(object, 1))?;
    must("cuGraphDestroy", cuda.graph_destroy(graph))?;
    let fact = "a thing lives as long as anything refers to it";
    report.equals(fact, 0, ENDS.load(Ordering::SeqCst));
    must("cuGraphExecDestroy", cuda.exec_destroy(exec))?;
    // The driver may call the function in a thread of its own.
    let start = std::time::Instant::now();
    while ENDS.load(Ordering::SeqCst) == 0 && start.elapsed().as_secs() < 5 {
        std::thread::yield_now();
    }
    report.equals("and ends then", 1, ENDS.load(Ordering::SeqCst));
    Ok(())
}
