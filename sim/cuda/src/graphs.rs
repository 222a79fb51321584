//! Graphs and their nodes: what each node does, and the graph that it is in. [`crate::executables`] instantiates and
//! launches graphs.

use std::collections::HashMap;
use std::sync::Arc;

use crate::captured_work::StreamWork;
use crate::conditionals;
use crate::driver::tables;
use crate::edges::{self, GraphEdge, NodeInsertion};
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::kernel_nodes::KernelLaunch;
use crate::location::MemLocation;
use crate::mapping;
use crate::memory_ops::Operation;
use crate::pointer::{In, Out};
use crate::pools::MemPoolProps;
use crate::tables::{MemoryKind, MemoryRange};
use crate::user_objects;

/// The graphs of a process.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    graphs: HashMap<u64, Graph>,
    /// The graph that each node is in, and what the node does.
    nodes: HashMap<u64, (u64, GraphNode)>,
}

#[derive(Debug, Default)]
struct Graph {
    nodes: Vec<u64>,
    edges: Vec<GraphEdge>,
    /// If the graph is a clone: the nodes of the original, and what each became here.
    copies: HashMap<u64, u64>,
    /// The references to user objects that it owns.
    objects: HashMap<u64, u32>,
}

/// What a node does.
#[derive(Debug, Clone)]
pub(crate) enum GraphNode {
    Nothing,
    Kernel(KernelLaunch),
    Allocate(MemAllocNodeParams),
    Free(u64),
    /// A child graph, owned by the node.
    Child(u64),
    Work(StreamWork),
    Record(u64),
    /// Waits for an event.
    Wait(u64),
    Operations(Arc<[Operation]>),
    /// Body graphs that run on a condition. Here the condition is always met.
    Conditional(Arc<[u64]>),
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct MemAllocNodeParams {
    pool: MemPoolProps,
    access: u64,
    access_count: usize,
    bytes: usize,
    address: u64,
}

exports! {
    cuGraphCreate(out: Out<u64>, flags: u32) = create => "cuGraphCreate" @ 10000;
    cuGraphDestroy(graph: u64) = destroy => "cuGraphDestroy" @ 10000;
    cuGraphAddEmptyNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize) = add_empty => "cuGraphAddEmptyNode" @ 10000;
    cuGraphAddChildGraphNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, of: u64) = add_child => "cuGraphAddChildGraphNode" @ 10000;
    cuGraphAddMemAllocNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, parameters: Out<MemAllocNodeParams>) = add_allocation => "cuGraphAddMemAllocNode" @ 11040;
    cuGraphAddMemFreeNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, address: u64) = add_free => "cuGraphAddMemFreeNode" @ 11040;
    cuGraphDestroyNode(node: u64) = destroy_node => "cuGraphDestroyNode" @ 10000;
    cuGraphGetNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) = get_nodes => "cuGraphGetNodes" @ 10000;
    cuGraphNodeGetType(node: u64, kind: Out<u32>) = get_type => "cuGraphNodeGetType" @ 10000;
    cuGraphMemAllocNodeGetParams(node: u64, parameters: Out<MemAllocNodeParams>) = get_allocation => "cuGraphMemAllocNodeGetParams" @ 11040;
    cuGraphMemFreeNodeGetParams(node: u64, address: Out<u64>) = get_free => "cuGraphMemFreeNodeGetParams" @ 11040;
    cuGraphChildGraphNodeGetGraph(node: u64, graph: Out<u64>) = get_child => "cuGraphChildGraphNodeGetGraph" @ 10000;
}

impl MemAllocNodeParams {
    /// The allocation's address, its size, and the device that it is on.
    pub(crate) fn allocated(&self) -> Result<(u64, u64, i32), CudaError> {
        Ok((self.address, self.bytes as u64, self.pool.device()?))
    }

    /// The parameters of an allocation that a captured stream was given.
    pub(crate) fn new(place: MemLocation, bytes: u64) -> Self {
        Self {
            pool: MemPoolProps::at(place),
            access: 0,
            access_count: 0,
            bytes: bytes as usize,
            address: 0,
        }
    }
}

impl GraphNode {
    /// `CUgraphNodeType`.
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Self::Kernel(_) => 0,
            Self::Work(work) => work.kind(),
            Self::Child(_) => 4,
            Self::Nothing => 5,
            Self::Wait(_) => 6,
            Self::Record(_) => 7,
            Self::Allocate(_) => 10,
            Self::Free(_) => 11,
            Self::Operations(_) => 12,
            Self::Conditional(_) => 13,
        }
    }
}

impl Graphs {
    /// The graph that a node is in.
    pub(crate) fn graph_of(&self, node: u64) -> Option<u64> {
        self.nodes.get(&node).map(|(graph, _)| *graph)
    }

    /// The edges of a graph.
    pub(crate) fn edges_mut(&mut self, graph: u64) -> Result<&mut Vec<GraphEdge>, CudaError> {
        let graph = self.graphs.get_mut(&graph).ok_or(INVALID_VALUE)?;
        Ok(&mut graph.edges)
    }

    /// Records which node of a clone each node of the original became.
    pub(crate) fn note_clone(&mut self, clone: u64, copies: HashMap<u64, u64>) {
        if let Some(graph) = self.graphs.get_mut(&clone) {
            graph.copies = copies;
        }
    }

    /// The clone's node for a node of the original, if it still exists.
    pub(crate) fn in_clone(&self, clone: u64, original: u64) -> Option<u64> {
        let copy = *self.graphs.get(&clone)?.copies.get(&original)?;
        self.nodes.contains_key(&copy).then_some(copy)
    }

    /// The references to user objects that a graph owns.
    pub(crate) fn objects_mut(&mut self, graph: u64) -> Result<&mut HashMap<u64, u32>, CudaError> {
        let graph = self.graphs.get_mut(&graph).ok_or(INVALID_VALUE)?;
        Ok(&mut graph.objects)
    }

    /// Whether any node of a graph allocates or frees.
    pub(crate) fn has_memory(&self, graph: u64) -> Result<bool, CudaError> {
        let graph = self.graphs.get(&graph).ok_or(INVALID_VALUE)?;
        let mut nodes = graph.nodes.iter().filter_map(|node| self.nodes.get(node));
        Ok(nodes.any(|(_, node)| matches!(node, GraphNode::Allocate(_) | GraphNode::Free(_))))
    }
}

pub(crate) fn empty() -> u64 {
    let mut tables = tables();
    let handle = tables.fresh();
    tables.graphs.graphs.insert(handle, Graph::default());
    handle
}

fn create(out: Out<u64>, flags: u32) -> Outcome {
    out.check()?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    out.put(empty())
}

/// Destroys a graph with its nodes and their child graphs.
pub(crate) fn destroy(graph: u64) -> Outcome {
    let (children, objects) = {
        let mut tables = tables();
        let graph = tables.graphs.graphs.remove(&graph).ok_or(INVALID_VALUE)?;
        let gone = graph.nodes.iter();
        let gone: Vec<_> = gone
            .filter_map(|node| tables.graphs.nodes.remove(node))
            .collect();
        (gone.into_iter().filter_map(child_of), graph.objects)
    };
    children.for_each(|child| {
        let _ = destroy(child);
    });
    user_objects::release_all(objects)
}

fn child_of((_, node): (u64, GraphNode)) -> Option<u64> {
    match node {
        GraphNode::Child(child) => Some(child),
        _ => None,
    }
}

/// Adds a node. The next work of a captured stream will depend on it.
pub(crate) fn add(to: NodeInsertion, node: GraphNode) -> Result<u64, CudaError> {
    let mut tables = tables();
    let handle = tables.fresh();
    let graph = tables.graphs.graphs.get_mut(&to.graph);
    let graph = graph.ok_or(INVALID_VALUE)?;
    graph.nodes.push(handle);
    graph
        .edges
        .extend(to.dependencies.iter().map(|dependency| GraphEdge {
            from: dependency.node,
            to: handle,
            data: dependency.data,
        }));
    tables.graphs.nodes.insert(handle, (to.graph, node));
    if let Some(stream) = to.stream {
        tables.captures.advance(stream, handle);
    }
    Ok(handle)
}

fn add_empty(out: Out<u64>, graph: u64, after: In<u64>, count: usize) -> Outcome {
    out.check()?;
    let to = NodeInsertion::after(graph, after, count)?;
    out.put(add(to, GraphNode::Nothing)?)
}

fn add_child(out: Out<u64>, graph: u64, after: In<u64>, count: usize, of: u64) -> Outcome {
    out.check()?;
    let to = NodeInsertion::after(graph, after, count)?;
    out.put(add(to, child(of)?)?)
}

/// A child graph node with a copy of `graph`.
pub(crate) fn child(graph: u64) -> Result<GraphNode, CudaError> {
    conditionals::copy(graph).map(GraphNode::Child)
}

/// Removes a node and its edges, unless the graph has memory nodes.
fn destroy_node(node: u64) -> Outcome {
    let gone = take_out(node)?;
    child_of((0, gone)).map_or(Ok(()), destroy)
}

fn take_out(node: u64) -> Result<GraphNode, CudaError> {
    let mut tables = tables();
    let graph = tables.graphs.graph_of(node).ok_or(INVALID_VALUE)?;
    if tables.graphs.has_memory(graph)? {
        return Err(INVALID_VALUE);
    }
    let graph = tables.graphs.graphs.get_mut(&graph).ok_or(INVALID_VALUE)?;
    graph.nodes.retain(|known| *known != node);
    graph
        .edges
        .retain(|edge| edge.from != node && edge.to != node);
    let gone = tables.graphs.nodes.remove(&node);
    gone.map(|(_, gone)| gone).ok_or(INVALID_VALUE)
}

/// An allocation node. Its address is fixed from the start; it has memory only while it is allocated.
pub(crate) fn allocation(
    to: NodeInsertion,
    mut parameters: MemAllocNodeParams,
) -> Result<(u64, u64), CudaError> {
    if parameters.bytes == 0 || parameters.pool.device()? < 0 {
        return Err(INVALID_VALUE);
    }
    let bytes = parameters.bytes as u64;
    parameters.address = mapping::lazy(bytes)?;
    let node = add(to, GraphNode::Allocate(parameters))?;
    let mut tables = tables();
    let serial = tables.fresh();
    let range = MemoryRange {
        bytes,
        kind: MemoryKind::Graph,
        device: parameters.pool.device()?,
        context: 0,
        serial,
    };
    tables.ranges.insert(parameters.address, range);
    Ok((node, parameters.address))
}

fn add_allocation(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    parameters: Out<MemAllocNodeParams>,
) -> Outcome {
    out.check()?;
    let to = NodeInsertion::after(graph, after, count)?;
    out.put(add_asked(to, parameters)?)
}

/// Adds an allocation for a program and writes the address into its parameters.
pub(crate) fn add_asked(
    to: NodeInsertion,
    parameters: Out<MemAllocNodeParams>,
) -> Result<u64, CudaError> {
    let mut asked = parameters.read()?;
    let (node, address) = allocation(to, asked)?;
    asked.address = address;
    parameters.put(asked)?;
    Ok(node)
}

/// Adds a node that frees an allocation of any graph in the process.
pub(crate) fn release(to: NodeInsertion, address: u64) -> Result<u64, CudaError> {
    let range = tables().ranges.get(&address).copied();
    match range.map(|range| range.kind) {
        Some(MemoryKind::Graph) => add(to, GraphNode::Free(address)),
        Some(_) | None => Err(INVALID_VALUE),
    }
}

fn add_free(out: Out<u64>, graph: u64, after: In<u64>, count: usize, address: u64) -> Outcome {
    out.check()?;
    out.put(release(
        NodeInsertion::after(graph, after, count)?,
        address,
    )?)
}

pub(crate) fn nodes_of(graph: u64) -> Result<Vec<u64>, CudaError> {
    let tables = tables();
    let graph = tables.graphs.graphs.get(&graph).ok_or(INVALID_VALUE)?;
    Ok(graph.nodes.clone())
}

/// What a node does.
pub(crate) fn node(handle: u64) -> Result<GraphNode, CudaError> {
    let tables = tables();
    let found = tables.graphs.nodes.get(&handle);
    found.map(|(_, node)| node.clone()).ok_or(INVALID_VALUE)
}

/// Changes what a node does. Its type must stay the same.
pub(crate) fn set(handle: u64, to: GraphNode) -> Outcome {
    let mut tables = tables();
    let found = tables.graphs.nodes.get_mut(&handle);
    let (_, known) = found.ok_or(INVALID_VALUE)?;
    if known.kind() != to.kind() {
        return Err(INVALID_VALUE);
    }
    *known = to;
    Ok(())
}

fn get_nodes(graph: u64, nodes: Out<u64>, count: Out<usize>) -> Outcome {
    count.check()?;
    edges::give(&nodes_of(graph)?, nodes, count)
}

fn get_type(handle: u64, kind: Out<u32>) -> Outcome {
    kind.put(node(handle)?.kind())
}

fn get_allocation(handle: u64, parameters: Out<MemAllocNodeParams>) -> Outcome {
    match node(handle)? {
        GraphNode::Allocate(known) => parameters.put(known),
        _ => Err(INVALID_VALUE),
    }
}

fn get_free(handle: u64, address: Out<u64>) -> Outcome {
    match node(handle)? {
        GraphNode::Free(known) => address.put(known),
        _ => Err(INVALID_VALUE),
    }
}

fn get_child(handle: u64, graph: Out<u64>) -> Outcome {
    match node(handle)? {
        GraphNode::Child(child) => graph.put(child),
        _ => Err(INVALID_VALUE),
    }
}
