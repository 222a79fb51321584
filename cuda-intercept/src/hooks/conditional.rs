//! Conditional nodes, whose bodies are graphs. The bodies are remembered, so that local memory for their kernels is
//! charged too before the graph becomes executable.
//!
//! If a node is unknown (because it belongs to a copied graph), the driver is asked; older drivers cannot answer. A
//! node is forgotten before it is destroyed, because another may get its handle.

use alloc::vec::Vec;

use apportion_gate::ConditionalBodies;

use crate::driver;
use crate::foreign::{NodeParameters, Opaque, SUCCESS, Status};
use crate::process::{self, ProcessState};

type AddNode =
    unsafe extern "C" fn(*mut Opaque, Opaque, Opaque, usize, *mut NodeParameters) -> Status;
type AddNodeAfter =
    unsafe extern "C" fn(*mut Opaque, Opaque, Opaque, Opaque, usize, *mut NodeParameters) -> Status;
type Destroy = unsafe extern "C" fn(Opaque) -> Status;

/// `CU_GRAPH_NODE_TYPE_CONDITIONAL`.
pub(super) const CONDITIONAL: u32 = 13;

/// The bodies of an existing node; empty if they cannot be found out.
pub(super) fn bodies_of(process: &ProcessState, node: Opaque) -> Vec<Opaque> {
    let known = process
        .allocations
        .lock()
        .graphs
        .conditionals
        .bodies(node as u64);
    let bodies = known.or_else(|| driver::conditional_of(node));
    bodies.map(graphs_of).unwrap_or_default()
}

fn graphs_of(bodies: ConditionalBodies) -> Vec<Opaque> {
    let mut graphs = Vec::new();
    let count = bodies.count as usize;
    if bodies.at != 0 && graphs.try_reserve_exact(count).is_ok() {
        // SAFETY: the driver keeps this many there for as long as the node lives.
        let all = unsafe { core::slice::from_raw_parts(bodies.at as *const Opaque, count) };
        graphs.extend_from_slice(all);
    }
    graphs
}

/// # Safety
/// `node` and `parameters` must be what the driver was given.
unsafe fn added(
    status: Status,
    node: *const Opaque,
    graph: Opaque,
    parameters: *const NodeParameters,
) -> Status {
    if status == SUCCESS
        // SAFETY: the driver accepted the pointer, and wrote where the bodies are.
        && let Some(parameters) = unsafe { parameters.as_ref() }
        && parameters.kind == CONDITIONAL
        // SAFETY: the driver accepted the pointer and wrote the node.
        && let Some(node) = unsafe { node.as_ref() }
        && let Some(process) = process::limited()
    {
        let mut allocations = process.allocations.lock();
        let bodies = parameters.bodies();
        allocations
            .graphs
            .conditionals
            .enter(*node as u64, graph as u64, bodies);
    }
    status
}

pub(crate) unsafe fn add_node(
    real: AddNode,
    node: *mut Opaque,
    graph: Opaque,
    after: Opaque,
    count: usize,
    parameters: *mut NodeParameters,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(node, graph, after, count, parameters) };
    // SAFETY: they are what the driver was given.
    unsafe { added(status, node, graph, parameters) }
}

pub(crate) unsafe fn add_node_after(
    real: AddNodeAfter,
    node: *mut Opaque,
    graph: Opaque,
    after: Opaque,
    edges: Opaque,
    count: usize,
    parameters: *mut NodeParameters,
) -> Status {
    // SAFETY: the arguments are the caller's own.
    let status = unsafe { real(node, graph, after, edges, count, parameters) };
    // SAFETY: they are what the driver was given.
    unsafe { added(status, node, graph, parameters) }
}

/// Forgets the nodes of a graph and of the graphs inside them, which end with it.
fn forget_in(process: &ProcessState, graph: Opaque) {
    loop {
        let taken = process
            .allocations
            .lock()
            .graphs
            .conditionals
            .take_in(graph as u64);
        let Some(bodies) = taken else { return };
        for body in graphs_of(bodies) {
            forget_in(process, body);
        }
    }
}

/// This process's state, if it has any conditional node.
fn with_nodes() -> Option<&'static ProcessState> {
    process::limited().filter(|process| !process.allocations.lock().graphs.conditionals.is_empty())
}

pub(crate) unsafe fn destroy(real: Destroy, graph: Opaque) -> Status {
    if let Some(process) = with_nodes() {
        forget_in(process, graph);
    }
    // SAFETY: the graph is the caller's own.
    unsafe { real(graph) }
}

pub(crate) unsafe fn destroy_node(real: Destroy, node: Opaque) -> Status {
    if let Some(process) = with_nodes() {
        let taken = process
            .allocations
            .lock()
            .graphs
            .conditionals
            .take(node as u64);
        for body in taken.map(graphs_of).unwrap_or_default() {
            forget_in(process, body);
        }
    }
    // SAFETY: the node is the caller's own.
    unsafe { real(node) }
}
