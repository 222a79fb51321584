//! Executable graphs: instantiate, launch, update.
//!
//! A launch takes a graph's memory from a pool of its device that only graphs use. Freed memory stays there until the
//! pool is trimmed. If a launch needs more than the pool has free in one piece, the pool is trimmed first: the real
//! driver would map the same memory at other addresses.

use std::collections::HashMap;

use apportion_sim_machine::{MachineReply, MachineRequest, PoolAttribute};

use crate::capture::captured;
use crate::driver::{ask, tables};
use crate::edges;
use crate::error::{CudaError, INVALID_VALUE, Outcome, UNKNOWN};
use crate::event;
use crate::export::exports;
use crate::graph_memory::{pool_of, value};
use crate::graphs::{self, GraphNode, MemAllocNodeParams};
use crate::memory_ops;
use crate::pointer::{In, Out};
use crate::stream::stream;
use crate::user_objects;

/// The executable graphs of a process.
#[derive(Debug, Default)]
pub(crate) struct ExecutableGraphs {
    by_handle: HashMap<u64, ExecutableGraph>,
    /// Allocations of graphs that have not been freed, by address.
    live: HashMap<u64, u64>,
}

/// A graph that can be launched.
#[derive(Debug)]
struct ExecutableGraph {
    steps: Vec<ExecutableNode>,
    flags: u64,
    /// The references to user objects that it owns.
    objects: HashMap<u64, u32>,
}

/// A node of the source graph. The nodes are stored in launch order.
#[derive(Debug, Clone)]
struct ExecutableNode {
    handle: u64,
    node: GraphNode,
    is_enabled: bool,
}

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH` and `_UPLOAD`.
const AUTO_FREE: u64 = 1;
const UPLOAD: u64 = 2;
/// All flags: the two above, device launch, and node priorities.
const FLAGS: u64 = 0xf;
/// `CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE`, and two of `CUgraphExecUpdateResult`.
const UPDATE_FAILURE: CudaError = CudaError(910);
const TOPOLOGY_CHANGED: u32 = 2;
const NODE_TYPE_CHANGED: u32 = 3;
/// The last `CUgraphNodeType` that can be disabled: kernels, copies and fills are the first three.
const LAST_SWITCHED: u32 = 2;

exports! {
    cuGraphInstantiate(out: Out<u64>, graph: u64, node: Out<u64>, log: Out<u8>, bytes: usize) = instantiate_v1 => "cuGraphInstantiate" @ 10000;
    cuGraphInstantiate_v2(out: Out<u64>, graph: u64, node: Out<u64>, log: Out<u8>, bytes: usize) = instantiate_v1 => "cuGraphInstantiate" @ 11000;
    cuGraphInstantiateWithFlags(out: Out<u64>, graph: u64, flags: u64) = instantiate => "cuGraphInstantiateWithFlags" @ 11040;
    cuGraphInstantiateWithParams(out: Out<u64>, graph: u64, parameters: In<u64>) = instantiate_with => "cuGraphInstantiateWithParams" @ 12000 | cuGraphInstantiateWithParams_ptsz @ 12000;
    cuGraphUpload(exec: u64, stream: u64) = upload => "cuGraphUpload" @ 11010 | cuGraphUpload_ptsz @ 11010;
    cuGraphLaunch(exec: u64, stream: u64) = launch => "cuGraphLaunch" @ 10000 | cuGraphLaunch_ptsz @ 10000;
    cuGraphExecUpdate(exec: u64, graph: u64, node: Out<u64>, result: Out<u32>) = update_v1 => "cuGraphExecUpdate" @ 10020;
    cuGraphExecUpdate_v2(exec: u64, graph: u64, info: Out<[u64; 3]>) = update => "cuGraphExecUpdate" @ 12000;
    cuGraphExecChildGraphNodeSetParams(exec: u64, node: u64, graph: u64) = change_child => "cuGraphExecChildGraphNodeSetParams" @ 11010;
    cuGraphExecGetFlags(exec: u64, flags: Out<u64>) = get_flags => "cuGraphExecGetFlags" @ 12000;
    cuGraphNodeSetEnabled(exec: u64, node: u64, is_enabled: u32) = set_enabled => "cuGraphNodeSetEnabled" @ 11060;
    cuGraphNodeGetEnabled(exec: u64, node: u64, is_enabled: Out<u32>) = get_enabled => "cuGraphNodeGetEnabled" @ 11060;
    cuGraphExecDestroy(exec: u64) = destroy => "cuGraphExecDestroy" @ 10000;
}

impl ExecutableGraphs {
    fn get(&self, handle: u64) -> Result<&ExecutableGraph, CudaError> {
        self.by_handle.get(&handle).ok_or(INVALID_VALUE)
    }

    fn get_mut(&mut self, handle: u64) -> Result<&mut ExecutableGraph, CudaError> {
        self.by_handle.get_mut(&handle).ok_or(INVALID_VALUE)
    }
}

impl ExecutableGraph {
    fn step_mut(&mut self, node: u64) -> Result<&mut ExecutableNode, CudaError> {
        let mut steps = self.steps.iter_mut();
        steps.find(|step| step.handle == node).ok_or(INVALID_VALUE)
    }
}

/// Fails if there is no such executable graph.
pub(crate) fn check(exec: u64) -> Outcome {
    tables().executables.get(exec).map(drop)
}

/// The nodes of a graph in topological order.
fn order(graph: u64) -> Result<Vec<u64>, CudaError> {
    let nodes = graphs::nodes_of(graph)?;
    let mut tables = tables();
    let edges = tables.graphs.edges_mut(graph)?;
    edges::ordered(&nodes, edges).ok_or(INVALID_VALUE)
}

/// All nodes in topological order, including those of child graphs.
fn flat(graph: u64) -> Result<Vec<ExecutableNode>, CudaError> {
    let mut all = Vec::new();
    for handle in order(graph)? {
        match graphs::node(handle)? {
            GraphNode::Child(child) => all.extend(flat(child)?),
            GraphNode::Conditional(bodies) => {
                for body in bodies.iter() {
                    all.extend(flat(*body)?);
                }
            }
            node => all.push(ExecutableNode {
                handle,
                node,
                is_enabled: true,
            }),
        }
    }
    Ok(all)
}

fn instantiate(out: Out<u64>, graph: u64, flags: u64) -> Outcome {
    out.check()?;
    if flags & !FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let steps = flat(graph)?;
    // A graph that is still being captured is not complete.
    if tables().captures.go_to(graph) {
        return Err(INVALID_VALUE);
    }
    let objects = user_objects::retained_for(graph)?;
    let mut tables = tables();
    let handle = tables.fresh();
    let made = ExecutableGraph {
        steps,
        flags,
        objects,
    };
    tables.executables.by_handle.insert(handle, made);
    out.put(handle)
}

fn instantiate_v1(out: Out<u64>, graph: u64, _: Out<u64>, _: Out<u8>, _: usize) -> Outcome {
    instantiate(out, graph, 0)
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`: flags, of which one asks for an upload, and the stream for the upload.
fn instantiate_with(out: Out<u64>, graph: u64, parameters: In<u64>) -> Outcome {
    instantiate(out, graph, parameters.get()?)?;
    if parameters.get()? & UPLOAD == 0 {
        return Ok(());
    }
    let made = out.read()?;
    let uploaded = upload(made, parameters.at(1)?);
    if uploaded.is_err() {
        destroy(made)?;
    }
    uploaded
}

/// The upload flag is not returned: it is no property of the executable graph.
fn get_flags(exec: u64, flags: Out<u64>) -> Outcome {
    flags.check()?;
    let known = tables().executables.get(exec)?.flags;
    flags.put(known & !UPLOAD)
}

/// Gives an allocation node its memory.
fn back(parameters: &MemAllocNodeParams) -> Outcome {
    let (address, bytes, device) = parameters.allocated()?;
    let pool = pool_of(device)?;
    let reserved = value(pool, PoolAttribute::Reserved)?;
    if reserved - value(pool, PoolAttribute::Used)? < bytes {
        ask(MachineRequest::PoolTrim { pool, keep: 0 })?;
    }
    match ask(MachineRequest::PoolAllocate { pool, bytes })? {
        MachineReply::Allocated { allocation, .. } => {
            tables().executables.live.insert(address, allocation);
            Ok(())
        }
        _ => Err(UNKNOWN),
    }
}

/// Frees an allocation's memory and keeps its address.
pub(crate) fn free(address: u64) -> Outcome {
    let live = tables().executables.live.remove(&address);
    ask(MachineRequest::Free(live.ok_or(INVALID_VALUE)?)).map(drop)
}

fn is_live(node: &GraphNode) -> Option<u64> {
    let GraphNode::Allocate(known) = node else {
        return None;
    };
    let (address, ..) = known.allocated().ok()?;
    let is_live = tables().executables.live.contains_key(&address);
    is_live.then_some(address)
}

fn steps_of(handle: u64) -> Result<(Vec<ExecutableNode>, u64), CudaError> {
    let tables = tables();
    let exec = tables.executables.get(handle)?;
    Ok((exec.steps.clone(), exec.flags))
}

/// Changes a node. Its type must stay the same.
pub(crate) fn change(exec: u64, node: u64, to: GraphNode) -> Outcome {
    let mut tables = tables();
    let step = tables.executables.get_mut(exec)?.step_mut(node)?;
    if step.node.kind() != to.kind() {
        return Err(INVALID_VALUE);
    }
    step.node = to;
    Ok(())
}

/// Replaces what the nodes do by what the nodes of another graph of the same shape do. The handles stay. Returns a
/// `CUgraphExecUpdateResult`.
fn replace(known: &mut [ExecutableNode], new: Vec<ExecutableNode>) -> u32 {
    if known.len() != new.len() {
        return TOPOLOGY_CHANGED;
    }
    let mut pairs = known.iter().zip(&new);
    if !pairs.all(|(from, to)| from.node.kind() == to.node.kind()) {
        return NODE_TYPE_CHANGED;
    }
    for (known, new) in known.iter_mut().zip(new) {
        known.node = new.node;
    }
    0
}

fn update_v1(exec: u64, graph: u64, node: Out<u64>, result: Out<u32>) -> Outcome {
    let new = flat(graph)?;
    let updated = replace(&mut tables().executables.get_mut(exec)?.steps, new);
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

/// Changes the nodes that a child graph node was expanded to.
pub(crate) fn change_child(exec: u64, node: u64, graph: u64) -> Outcome {
    let GraphNode::Child(child) = graphs::node(node)? else {
        return Err(INVALID_VALUE);
    };
    let (own, new) = (flat(child)?, flat(graph)?);
    let mut tables = tables();
    let steps = &mut tables.executables.get_mut(exec)?.steps;
    let Some(first) = own.first() else {
        return if new.is_empty() {
            Ok(())
        } else {
            Err(INVALID_VALUE)
        };
    };
    // The nodes of a child graph are adjacent, in the order of `flat`.
    let start = steps.iter().position(|step| step.handle == first.handle);
    let start = start.ok_or(INVALID_VALUE)?;
    let part = steps
        .get_mut(start..start + own.len())
        .ok_or(INVALID_VALUE)?;
    match replace(part, new) {
        0 => Ok(()),
        _ => Err(INVALID_VALUE),
    }
}

/// A disabled node does nothing. It keeps its parameters.
fn set_enabled(exec: u64, node: u64, is_enabled: u32) -> Outcome {
    let mut tables = tables();
    let step = tables.executables.get_mut(exec)?.step_mut(node)?;
    if step.node.kind() > LAST_SWITCHED {
        return Err(INVALID_VALUE);
    }
    step.is_enabled = is_enabled != 0;
    Ok(())
}

fn get_enabled(exec: u64, node: u64, is_enabled: Out<u32>) -> Outcome {
    is_enabled.check()?;
    let mut tables = tables();
    let step = tables.executables.get_mut(exec)?.step_mut(node)?;
    if step.node.kind() > LAST_SWITCHED {
        return Err(INVALID_VALUE);
    }
    is_enabled.put(u32::from(step.is_enabled))
}

/// Does what a node says. Returns the address if the node allocates.
fn perform(node: &GraphNode) -> Result<Option<u64>, CudaError> {
    match node {
        GraphNode::Allocate(parameters) => {
            back(parameters)?;
            return Ok(Some(parameters.allocated()?.0));
        }
        GraphNode::Free(address) => free(*address),
        GraphNode::Kernel(kernel) => kernel.start(),
        GraphNode::Work(work) => work.run(),
        GraphNode::Record(event) => event::record_now(*event),
        GraphNode::Operations(operations) => memory_ops::perform(operations),
        GraphNode::Nothing
        | GraphNode::Wait(_)
        | GraphNode::Child(_)
        | GraphNode::Conditional(_) => Ok(()),
    }
    .map(|()| None)
}

/// A graph whose last allocations are not freed cannot be launched again, unless it was instantiated with auto-free. In
/// a captured stream, its work becomes part of another graph.
fn launch(handle: u64, on: u64) -> Outcome {
    stream(on)?;
    let (mut steps, flags) = steps_of(handle)?;
    steps.retain(|step| step.is_enabled);
    if captured(on)?.is_some() {
        for step in steps {
            // Each added node changes the stream's dependency set, so read it again.
            let to = captured(on)?.ok_or(INVALID_VALUE)?;
            graphs::add(to, step.node)?;
        }
        return Ok(());
    }
    for address in steps.iter().filter_map(|step| is_live(&step.node)) {
        match flags & AUTO_FREE {
            0 => return Err(INVALID_VALUE),
            _ => free(address)?,
        }
    }
    let mut made = Vec::new();
    for step in &steps {
        match perform(&step.node) {
            Ok(address) => made.extend(address),
            Err(error) => {
                made.into_iter().for_each(|address| {
                    let _ = free(address);
                });
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Allocates the graph's memory and frees it again, so that the pool has it for the next launch.
fn upload(handle: u64, on: u64) -> Outcome {
    stream(on)?;
    let mut backed = Vec::new();
    let mut outcome = Ok(());
    for step in steps_of(handle)?.0 {
        if let GraphNode::Allocate(parameters) = step.node
            && is_live(&step.node).is_none()
        {
            outcome = outcome.and_then(|()| back(&parameters));
            backed.push(parameters.allocated()?.0);
        }
    }
    backed.into_iter().for_each(|address| {
        let _ = free(address);
    });
    outcome
}

/// Allocations that have not been freed stay.
fn destroy(handle: u64) -> Outcome {
    let gone = tables().executables.by_handle.remove(&handle);
    user_objects::release_all(gone.ok_or(INVALID_VALUE)?.objects)
}
