//! Graphs, as far as memory is concerned: nodes that allocate and free, kernels, graphs in graphs,
//! captured copies and fills, and empty nodes for all other work, which takes no time here.
//!
//! Memory of a graph is its device's: a launch takes it from a pool that only graphs use, and what is freed
//! stays there until it is trimmed. Where a launch needs more than lies free there in one piece, the pool
//! is trimmed first, as the real driver puts the same memory under other addresses.

use std::collections::HashMap;
use std::sync::Arc;

use apportion_sim_machine::{PoolAttribute, Reply, Request};

use crate::capture::captured;
use crate::captured_work::Work;
use crate::driver::{ask, tables};
use crate::edges::{self, Edge, Insertion};
use crate::error::{Error, INVALID_VALUE, Outcome, UNKNOWN};
use crate::export::exports;
use crate::functions;
use crate::graph_memory::{pool_of, value};
use crate::location::Place;
use crate::mapping;
use crate::pointer::{In, Out};
use crate::pools::Properties;
use crate::stream::stream;
use crate::tables::{Kind, Range};

/// The graphs of a process.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    graphs: HashMap<u64, Graph>,
    /// What each node does, and the graph that it is in.
    nodes: HashMap<u64, (u64, Node)>,
    execs: HashMap<u64, Vec<(u64, Node)>>,
    /// What is allocated now, by address.
    live: HashMap<u64, u64>,
}

#[derive(Debug, Default)]
struct Graph {
    nodes: Vec<u64>,
    edges: Vec<Edge>,
    /// What each node of the graph became that this is a copy of.
    copies: HashMap<u64, u64>,
}

/// What a node does.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    Nothing,
    Kernel(u64),
    Allocate(Parameters),
    Free(u64),
    Child(u64),
    /// A copy or a fill.
    Work(Work),
    /// Graphs that run on a condition, which here is always met.
    Conditional(Arc<[u64]>),
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Parameters {
    pool: Properties,
    access: u64,
    access_count: usize,
    bytes: usize,
    address: u64,
}

/// `CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE`, and two of `CUgraphExecUpdateResult`.
const UPDATE_FAILURE: Error = Error(910);
const TOPOLOGY_CHANGED: u32 = 2;
const NODE_TYPE_CHANGED: u32 = 3;

exports! {
    cuGraphCreate(out: Out<u64>, flags: u32) = create => "cuGraphCreate" @ 10000;
    cuGraphDestroy(graph: u64) = destroy => "cuGraphDestroy" @ 10000;
    cuGraphAddEmptyNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize) = add_empty => "cuGraphAddEmptyNode" @ 10000;
    cuGraphAddChildGraphNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, child: u64) = add_child => "cuGraphAddChildGraphNode" @ 10000;
    cuGraphAddMemAllocNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, parameters: Out<Parameters>) = add_allocation => "cuGraphAddMemAllocNode" @ 11040;
    cuGraphAddMemFreeNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, address: u64) = add_free => "cuGraphAddMemFreeNode" @ 11040;
    cuGraphDestroyNode(node: u64) = destroy_node => "cuGraphDestroyNode" @ 10000;
    cuGraphGetNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) = get_nodes => "cuGraphGetNodes" @ 10000;
    cuGraphNodeGetType(node: u64, kind: Out<u32>) = get_type => "cuGraphNodeGetType" @ 10000;
    cuGraphMemAllocNodeGetParams(node: u64, parameters: Out<Parameters>) = get_allocation => "cuGraphMemAllocNodeGetParams" @ 11040;
    cuGraphMemFreeNodeGetParams(node: u64, address: Out<u64>) = get_free => "cuGraphMemFreeNodeGetParams" @ 11040;
    cuGraphChildGraphNodeGetGraph(node: u64, graph: Out<u64>) = get_child => "cuGraphChildGraphNodeGetGraph" @ 10000;
    cuGraphInstantiate(out: Out<u64>, graph: u64, node: Out<u64>, log: Out<u8>, bytes: usize) = instantiate_v1 => "cuGraphInstantiate" @ 10000;
    cuGraphInstantiate_v2(out: Out<u64>, graph: u64, node: Out<u64>, log: Out<u8>, bytes: usize) = instantiate_v1 => "cuGraphInstantiate" @ 11000;
    cuGraphInstantiateWithFlags(out: Out<u64>, graph: u64, flags: u64) = instantiate => "cuGraphInstantiateWithFlags" @ 11040;
    cuGraphInstantiateWithParams(out: Out<u64>, graph: u64, parameters: In<u64>) = instantiate_with => "cuGraphInstantiateWithParams" @ 12000 | cuGraphInstantiateWithParams_ptsz @ 12000;
    cuGraphUpload(exec: u64, stream: u64) = upload => "cuGraphUpload" @ 11010 | cuGraphUpload_ptsz @ 11010;
    cuGraphLaunch(exec: u64, stream: u64) = launch => "cuGraphLaunch" @ 10000 | cuGraphLaunch_ptsz @ 10000;
    cuGraphExecUpdate(exec: u64, graph: u64, node: Out<u64>, result: Out<u32>) = update_v1 => "cuGraphExecUpdate" @ 10020;
    cuGraphExecUpdate_v2(exec: u64, graph: u64, info: Out<[u64; 3]>) = update => "cuGraphExecUpdate" @ 12000;
    cuGraphExecDestroy(exec: u64) = destroy_exec => "cuGraphExecDestroy" @ 10000;
}

impl Parameters {
    /// Those of an allocation that a captured stream was asked for.
    pub(crate) fn new(place: Place, bytes: u64) -> Self {
        Self {
            pool: Properties::at(place),
            access: 0,
            access_count: 0,
            bytes: bytes as usize,
            address: 0,
        }
    }
}

impl Node {
    /// `CUgraphNodeType`.
    fn kind(&self) -> u32 {
        match self {
            Self::Kernel(_) => 0,
            Self::Work(work) => work.kind,
            Self::Child(_) => 4,
            Self::Nothing => 5,
            Self::Allocate(_) => 10,
            Self::Free(_) => 11,
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
    pub(crate) fn edges_mut(&mut self, graph: u64) -> Result<&mut Vec<Edge>, Error> {
        let graph = self.graphs.get_mut(&graph).ok_or(INVALID_VALUE)?;
        Ok(&mut graph.edges)
    }

    /// Notes what each node of another graph became in a copy of it.
    pub(crate) fn note_clone(&mut self, clone: u64, copies: HashMap<u64, u64>) {
        if let Some(graph) = self.graphs.get_mut(&clone) {
            graph.copies = copies;
        }
    }

    /// What a node became in a copy of its graph, if it is still there.
    pub(crate) fn in_clone(&self, clone: u64, original: u64) -> Option<u64> {
        let copy = *self.graphs.get(&clone)?.copies.get(&original)?;
        self.nodes.contains_key(&copy).then_some(copy)
    }

    /// Whether any node of a graph allocates or frees.
    pub(crate) fn has_memory(&self, graph: u64) -> Result<bool, Error> {
        let graph = self.graphs.get(&graph).ok_or(INVALID_VALUE)?;
        let mut nodes = graph.nodes.iter().filter_map(|node| self.nodes.get(node));
        Ok(nodes.any(|(_, node)| matches!(node, Node::Allocate(_) | Node::Free(_))))
    }
}

/// An empty graph.
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

/// Takes the nodes, and the addresses of what they allocate, with it.
pub(crate) fn destroy(graph: u64) -> Outcome {
    let mut tables = tables();
    let graph = tables.graphs.graphs.remove(&graph).ok_or(INVALID_VALUE)?;
    for node in graph.nodes {
        tables.graphs.nodes.remove(&node);
    }
    Ok(())
}

/// Adds a node. What comes next of a captured stream depends on it.
pub(crate) fn add(to: Insertion, node: Node) -> Result<u64, Error> {
    let mut tables = tables();
    let handle = tables.fresh();
    let graph = tables.graphs.graphs.get_mut(&to.graph);
    let graph = graph.ok_or(INVALID_VALUE)?;
    graph.nodes.push(handle);
    graph
        .edges
        .extend(to.dependencies.iter().map(|dependency| Edge {
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
    let to = Insertion::after(graph, after, count)?;
    out.put(add(to, Node::Nothing)?)
}

fn add_child(out: Out<u64>, graph: u64, after: In<u64>, count: usize, child: u64) -> Outcome {
    out.check()?;
    nodes_of(child)?;
    let to = Insertion::after(graph, after, count)?;
    out.put(add(to, Node::Child(child))?)
}

/// Takes a node and its edges out of its graph, unless that has memory.
fn destroy_node(node: u64) -> Outcome {
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
    tables.graphs.nodes.remove(&node);
    Ok(())
}

/// An allocation has its address from the start, and memory while it runs.
pub(crate) fn allocation(to: Insertion, mut parameters: Parameters) -> Result<(u64, u64), Error> {
    if parameters.bytes == 0 || parameters.pool.device()? < 0 {
        return Err(INVALID_VALUE);
    }
    let bytes = parameters.bytes as u64;
    parameters.address = mapping::lazy(bytes)?;
    let node = add(to, Node::Allocate(parameters))?;
    let mut tables = tables();
    let serial = tables.fresh();
    let range = Range {
        bytes,
        kind: Kind::Graph,
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
    parameters: Out<Parameters>,
) -> Outcome {
    out.check()?;
    let mut asked = parameters.read()?;
    let to = Insertion::after(graph, after, count)?;
    let (node, address) = allocation(to, asked)?;
    asked.address = address;
    parameters.put(asked)?;
    out.put(node)
}

/// Adds a node that frees what another of the process's graphs allocates.
pub(crate) fn release(to: Insertion, address: u64) -> Result<u64, Error> {
    let range = tables().ranges.get(&address).copied();
    match range.map(|range| range.kind) {
        Some(Kind::Graph) => add(to, Node::Free(address)),
        Some(_) | None => Err(INVALID_VALUE),
    }
}

fn add_free(out: Out<u64>, graph: u64, after: In<u64>, count: usize, address: u64) -> Outcome {
    out.check()?;
    out.put(release(Insertion::after(graph, after, count)?, address)?)
}

pub(crate) fn nodes_of(graph: u64) -> Result<Vec<u64>, Error> {
    let tables = tables();
    let graph = tables.graphs.graphs.get(&graph).ok_or(INVALID_VALUE)?;
    Ok(graph.nodes.clone())
}

/// What a node does.
pub(crate) fn node(handle: u64) -> Result<Node, Error> {
    let tables = tables();
    let found = tables.graphs.nodes.get(&handle);
    found.map(|(_, node)| node.clone()).ok_or(INVALID_VALUE)
}

fn get_nodes(graph: u64, nodes: Out<u64>, count: Out<usize>) -> Outcome {
    count.check()?;
    edges::give(&nodes_of(graph)?, nodes, count)
}

fn get_type(handle: u64, kind: Out<u32>) -> Outcome {
    kind.put(node(handle)?.kind())
}

fn get_allocation(handle: u64, parameters: Out<Parameters>) -> Outcome {
    match node(handle)? {
        Node::Allocate(known) => parameters.put(known),
        _ => Err(INVALID_VALUE),
    }
}

fn get_free(handle: u64, address: Out<u64>) -> Outcome {
    match node(handle)? {
        Node::Free(known) => address.put(known),
        _ => Err(INVALID_VALUE),
    }
}

fn get_child(handle: u64, graph: Out<u64>) -> Outcome {
    match node(handle)? {
        Node::Child(child) => graph.put(child),
        _ => Err(INVALID_VALUE),
    }
}

/// The nodes of a graph in an order that keeps to its edges.
fn order(graph: u64) -> Result<Vec<u64>, Error> {
    let tables = tables();
    let graph = tables.graphs.graphs.get(&graph).ok_or(INVALID_VALUE)?;
    edges::ordered(&graph.nodes, &graph.edges).ok_or(INVALID_VALUE)
}

/// All nodes in an order that keeps to the edges, with those of the graphs in it.
fn flat(graph: u64) -> Result<Vec<(u64, Node)>, Error> {
    let mut all = Vec::new();
    for handle in order(graph)? {
        match node(handle)? {
            Node::Child(child) => all.extend(flat(child)?),
            Node::Conditional(bodies) => {
                for body in bodies.iter() {
                    all.extend(flat(*body)?);
                }
            }
            plain => all.push((handle, plain)),
        }
    }
    Ok(all)
}

fn instantiate(out: Out<u64>, graph: u64, _flags: u64) -> Outcome {
    out.check()?;
    let nodes = flat(graph)?;
    let mut tables = tables();
    // What is still being captured is not complete.
    if tables.captures.go_to(graph) {
        return Err(INVALID_VALUE);
    }
    let handle = tables.fresh();
    tables.graphs.execs.insert(handle, nodes);
    out.put(handle)
}

fn instantiate_v1(out: Out<u64>, graph: u64, _: Out<u64>, _: Out<u8>, _: usize) -> Outcome {
    instantiate(out, graph, 0)
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`: flags, of which one asks for an upload, and the stream for it.
fn instantiate_with(out: Out<u64>, graph: u64, parameters: In<u64>) -> Outcome {
    instantiate(out, graph, parameters.get()?)?;
    if parameters.get()? & 2 == 0 {
        return Ok(());
    }
    let made = out.read()?;
    let uploaded = upload(made, parameters.at(1)?);
    if uploaded.is_err() {
        destroy_exec(made)?;
    }
    uploaded
}

/// Gets an allocation its memory.
fn back(parameters: &Parameters) -> Outcome {
    let (pool, bytes) = (pool_of(parameters.pool.device()?)?, parameters.bytes as u64);
    let reserved = value(pool, PoolAttribute::Reserved)?;
    if reserved - value(pool, PoolAttribute::Used)? < bytes {
        ask(Request::PoolTrim { pool, keep: 0 })?;
    }
    match ask(Request::PoolAllocate { pool, bytes })? {
        Reply::Allocated { allocation, .. } => {
            let mut tables = tables();
            tables.graphs.live.insert(parameters.address, allocation);
            Ok(())
        }
        _ => Err(UNKNOWN),
    }
}

/// Takes an allocation's memory back; the address stays.
pub(crate) fn free(address: u64) -> Outcome {
    let live = tables().graphs.live.remove(&address);
    ask(Request::Free(live.ok_or(INVALID_VALUE)?)).map(drop)
}

fn exec(handle: u64) -> Result<Vec<Node>, Error> {
    let tables = tables();
    let exec = tables.graphs.execs.get(&handle);
    let nodes = exec.ok_or(INVALID_VALUE)?.iter();
    Ok(nodes.map(|(_, node)| node.clone()).collect())
}

/// Changes a node of an executable graph.
pub(crate) fn change(exec: u64, node: u64, to: Node) -> Outcome {
    let mut tables = tables();
    let nodes = tables.graphs.execs.get_mut(&exec).ok_or(INVALID_VALUE)?;
    let known = nodes.iter_mut().find(|(handle, _)| *handle == node);
    known.ok_or(INVALID_VALUE)?.1 = to;
    Ok(())
}

/// Makes an executable graph do what another graph of the same shape says; its nodes keep their handles. Gives a
/// `CUgraphExecUpdateResult`.
fn updated(exec: u64, graph: u64) -> Result<u32, Error> {
    let nodes = flat(graph)?;
    let mut tables = tables();
    let known = tables.graphs.execs.get_mut(&exec).ok_or(INVALID_VALUE)?;
    if known.len() != nodes.len() {
        return Ok(TOPOLOGY_CHANGED);
    }
    let mut pairs = known.iter().zip(&nodes);
    if !pairs.all(|((_, from), (_, to))| from.kind() == to.kind()) {
        return Ok(NODE_TYPE_CHANGED);
    }
    for ((_, known), (_, node)) in known.iter_mut().zip(nodes) {
        *known = node;
    }
    Ok(0)
}

fn update_v1(exec: u64, graph: u64, node: Out<u64>, result: Out<u32>) -> Outcome {
    let updated = updated(exec, graph)?;
    node.offer(0);
    result.offer(updated);
    match updated {
        0 => Ok(()),
        _ => Err(UPDATE_FAILURE),
    }
}

/// `CUgraphExecUpdateResultInfo` is the result and two nodes.
fn update(exec: u64, graph: u64, info: Out<[u64; 3]>) -> Outcome {
    let mut result = 0;
    let outcome = update_v1(exec, graph, Out::null(), Out::to(&mut result));
    info.offer([u64::from(result), 0, 0]);
    outcome
}

/// A graph that still has what it allocated last time cannot be launched again. In a stream that is being
/// captured its work becomes part of another graph.
fn launch(handle: u64, on: u64) -> Outcome {
    stream(on)?;
    let nodes = exec(handle)?;
    if captured(on)?.is_some() {
        for node in nodes {
            let to = captured(on)?.ok_or(INVALID_VALUE)?;
            add(to, node)?;
        }
        return Ok(());
    }
    let is_live = |node: &Node| match node {
        Node::Allocate(known) => tables().graphs.live.contains_key(&known.address),
        _ => false,
    };
    if nodes.iter().any(is_live) {
        return Err(INVALID_VALUE);
    }
    let mut done = Vec::new();
    for node in &nodes {
        let step = match node {
            Node::Allocate(parameters) => back(parameters).map(|()| done.push(parameters.address)),
            Node::Free(address) => free(*address),
            Node::Kernel(function) => functions::start(*function),
            Node::Work(work) => work.run(),
            Node::Nothing | Node::Child(_) | Node::Conditional(_) => Ok(()),
        };
        if let Err(error) = step {
            done.into_iter().for_each(|address| {
                let _ = free(address);
            });
            return Err(error);
        }
    }
    Ok(())
}

/// Gets the graph's memory ready.
fn upload(handle: u64, on: u64) -> Outcome {
    stream(on)?;
    let mut backed = Vec::new();
    let mut outcome = Ok(());
    for node in exec(handle)? {
        if let Node::Allocate(parameters) = node {
            outcome = outcome.and_then(|()| back(&parameters));
            backed.push(parameters.address);
        }
    }
    backed.into_iter().for_each(|address| {
        let _ = free(address);
    });
    outcome
}

fn destroy_exec(handle: u64) -> Outcome {
    let gone = tables().graphs.execs.remove(&handle);
    gone.map(drop).ok_or(INVALID_VALUE)
}
