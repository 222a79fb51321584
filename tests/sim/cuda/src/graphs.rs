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
    graphs: HashMap<u64, Vec<u64>>,
    nodes: HashMap<u64, Node>,
    execs: HashMap<u64, Vec<(u64, Node)>>,
    /// What is allocated now, by address.
    live: HashMap<u64, u64>,
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

exports! {
    cuGraphCreate(out: Out<u64>, flags: u32) = create => "cuGraphCreate" @ 10000;
    cuGraphDestroy(graph: u64) = destroy => "cuGraphDestroy" @ 10000;
    cuGraphAddEmptyNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize) = add_empty => "cuGraphAddEmptyNode" @ 10000;
    cuGraphAddChildGraphNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, child: u64) = add_child => "cuGraphAddChildGraphNode" @ 10000;
    cuGraphAddMemAllocNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, parameters: Out<Parameters>) = add_allocation => "cuGraphAddMemAllocNode" @ 11040;
    cuGraphAddMemFreeNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, address: u64) = add_free => "cuGraphAddMemFreeNode" @ 11040;
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
    cuGraphExecUpdate_v2(exec: u64, graph: u64, info: Out<u64>) = update => "cuGraphExecUpdate" @ 12000;
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

/// An empty graph.
pub(crate) fn empty() -> u64 {
    let mut tables = tables();
    let handle = tables.fresh();
    tables.graphs.graphs.insert(handle, Vec::new());
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
    let nodes = tables.graphs.graphs.remove(&graph).ok_or(INVALID_VALUE)?;
    for node in nodes {
        tables.graphs.nodes.remove(&node);
    }
    Ok(())
}

/// Adds a node.
pub(crate) fn add(graph: u64, node: Node) -> Result<u64, Error> {
    let mut tables = tables();
    let handle = tables.fresh();
    let nodes = tables.graphs.graphs.get_mut(&graph).ok_or(INVALID_VALUE)?;
    nodes.push(handle);
    tables.graphs.nodes.insert(handle, node);
    Ok(handle)
}

fn add_empty(out: Out<u64>, graph: u64, _after: In<u64>, _count: usize) -> Outcome {
    out.check()?;
    out.put(add(graph, Node::Nothing)?)
}

fn add_child(out: Out<u64>, graph: u64, _: In<u64>, _: usize, child: u64) -> Outcome {
    out.check()?;
    nodes_of(child)?;
    out.put(add(graph, Node::Child(child))?)
}

/// An allocation has its address from the start, and memory while it runs.
pub(crate) fn allocation(graph: u64, mut parameters: Parameters) -> Result<(u64, u64), Error> {
    if parameters.bytes == 0 || parameters.pool.device()? < 0 {
        return Err(INVALID_VALUE);
    }
    let bytes = parameters.bytes as u64;
    parameters.address = mapping::lazy(bytes)?;
    let node = add(graph, Node::Allocate(parameters))?;
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
    _after: In<u64>,
    _count: usize,
    parameters: Out<Parameters>,
) -> Outcome {
    out.check()?;
    let mut asked = parameters.read()?;
    let (node, address) = allocation(graph, asked)?;
    asked.address = address;
    parameters.put(asked)?;
    out.put(node)
}

/// Adds a node that frees what another of the process's graphs allocates.
pub(crate) fn release(graph: u64, address: u64) -> Result<u64, Error> {
    let range = tables().ranges.get(&address).copied();
    match range.map(|range| range.kind) {
        Some(Kind::Graph) => add(graph, Node::Free(address)),
        Some(_) | None => Err(INVALID_VALUE),
    }
}

fn add_free(out: Out<u64>, graph: u64, _: In<u64>, _: usize, address: u64) -> Outcome {
    out.check()?;
    out.put(release(graph, address)?)
}

pub(crate) fn nodes_of(graph: u64) -> Result<Vec<u64>, Error> {
    let tables = tables();
    let nodes = tables.graphs.graphs.get(&graph);
    nodes.cloned().ok_or(INVALID_VALUE)
}

/// What a node does.
pub(crate) fn node(handle: u64) -> Result<Node, Error> {
    let tables = tables();
    let node = tables.graphs.nodes.get(&handle);
    node.cloned().ok_or(INVALID_VALUE)
}

/// Without a place for them, says how many there are.
fn get_nodes(graph: u64, nodes: Out<u64>, count: Out<usize>) -> Outcome {
    let all = nodes_of(graph)?;
    if nodes.check().is_err() {
        return count.put(all.len());
    }
    let room = count.read()?;
    for (at, node) in all.iter().take(room).enumerate() {
        nodes.put_at(at, *node)?;
    }
    count.put(all.len().min(room))
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

/// All nodes in the order in which they were added, with those of the graphs in it.
fn flat(graph: u64) -> Result<Vec<(u64, Node)>, Error> {
    let mut all = Vec::new();
    for handle in nodes_of(graph)? {
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

/// Makes an executable graph do what another graph says.
fn update(exec: u64, graph: u64, _info: Out<u64>) -> Outcome {
    let nodes = flat(graph)?;
    let mut tables = tables();
    *tables.graphs.execs.get_mut(&exec).ok_or(INVALID_VALUE)? = nodes;
    Ok(())
}

/// A graph that still has what it allocated last time cannot be launched again. In a stream that is being
/// captured its work becomes part of another graph.
fn launch(handle: u64, on: u64) -> Outcome {
    stream(on)?;
    let nodes = exec(handle)?;
    if let Some(graph) = captured(on)? {
        return nodes
            .into_iter()
            .try_for_each(|node| add(graph, node).map(drop));
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
