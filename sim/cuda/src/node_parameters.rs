//! Nodes of every type by one structure: `CUgraphNodeParams` is a type, followed by that type's own parameters.

use crate::captured_work::StreamWork;
use crate::conditionals::ConditionalNodeParams;
use crate::copy_rows::Wide3D;
use crate::edges::{EdgeData, NodeInsertion};
use crate::error::{CudaError, INVALID_VALUE, NOT_SUPPORTED, Outcome};
use crate::event;
use crate::executables;
use crate::export::exports;
use crate::fill::MemsetNodeParams;
use crate::graphs::{self, GraphNode};
use crate::kernel_nodes::{self, KernelNodeParamsV2 as KernelParameters};
use crate::memory_ops::BatchMemOpParams;
use crate::pointer::{In, Out};
use crate::stream::HostNodeParams;

/// `CUgraphNodeParams`, in words.
type Words = [u64; 32];

/// The offset of the type's own parameters.
const REST: u64 = 16;

/// `CUgraphNodeType`.
const KERNEL: u32 = 0;
const COPY: u32 = 1;
const FILL: u32 = 2;
const HOST: u32 = 3;
const GRAPH: u32 = 4;
const EMPTY: u32 = 5;
const WAIT: u32 = 6;
const RECORD: u32 = 7;
const ALLOCATION: u32 = 10;
const FREE: u32 = 11;
const OPERATIONS: u32 = 12;
const CONDITIONAL: u32 = 13;

/// `CUDA_MEMCPY_NODE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
struct CopyParameters {
    flags: i32,
    reserved: i32,
    context: u64,
    copy: Wide3D,
}

exports! {
    cuGraphAddNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, parameters: Out<Words>) = add => "cuGraphAddNode" @ 12020;
    cuGraphAddNode_v2(out: Out<u64>, graph: u64, after: In<u64>, data: In<EdgeData>, count: usize, parameters: Out<Words>) = add_after => "cuGraphAddNode" @ 12030;
    cuGraphNodeGetParams(node: u64, parameters: Out<Words>) = get => "cuGraphNodeGetParams" @ 13020;
    cuGraphNodeSetParams(node: u64, parameters: In<Words>) = set => "cuGraphNodeSetParams" @ 12020;
    cuGraphNodeSetParams_v2(node: u64, parameters: In<Words>) = set => "cuGraphNodeSetParams" @ 13040;
    cuGraphExecNodeSetParams(exec: u64, node: u64, parameters: In<Words>) = change => "cuGraphExecNodeSetParams" @ 12020;
}

/// The type's own parameters, as their structure.
fn rest<T: Copy>(parameters: In<Words>) -> In<T> {
    In::from_address(parameters.address() + REST)
}

fn kind_of(parameters: In<Words>) -> Result<u32, CudaError> {
    parameters.cast::<u32>().get()
}

/// What a node does, for types without memory or graphs. Reads only the bytes that the type has, as a program need not
/// provide more.
fn plain(parameters: In<Words>) -> Result<GraphNode, CudaError> {
    match kind_of(parameters)? {
        KERNEL => rest::<KernelParameters>(parameters)
            .get()?
            .kernel()
            .map(GraphNode::Kernel),
        COPY => {
            let copy = rest::<CopyParameters>(parameters).get()?.copy;
            Ok(GraphNode::Work(StreamWork::Copy(copy)))
        }
        FILL => {
            let fill = rest::<MemsetNodeParams>(parameters).get()?.checked()?;
            Ok(GraphNode::Work(StreamWork::Fill(fill)))
        }
        HOST => {
            let call = rest::<HostNodeParams>(parameters).get()?.checked()?;
            Ok(GraphNode::Work(StreamWork::Host(call)))
        }
        EMPTY => Ok(GraphNode::Nothing),
        WAIT => known_event(parameters).map(GraphNode::Wait),
        RECORD => known_event(parameters).map(GraphNode::Record),
        OPERATIONS => rest::<BatchMemOpParams>(parameters).get()?.node(),
        ALLOCATION | FREE | GRAPH | CONDITIONAL => Err(NOT_SUPPORTED),
        _ => Err(INVALID_VALUE),
    }
}

fn known_event(parameters: In<Words>) -> Result<u64, CudaError> {
    let event = rest::<u64>(parameters).get()?;
    event::check(event)?;
    Ok(event)
}

fn add(out: Out<u64>, graph: u64, after: In<u64>, count: usize, parameters: Out<Words>) -> Outcome {
    add_after(out, graph, after, In::null(), count, parameters)
}

/// Adds a node. An allocation's address and a conditional's body graphs are written back.
fn add_after(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    data: In<EdgeData>,
    count: usize,
    parameters: Out<Words>,
) -> Outcome {
    out.check()?;
    parameters.check()?;
    let given = In::from_address(parameters.address());
    let to = NodeInsertion::with_data(graph, after, data, count)?;
    let node = match kind_of(given)? {
        GRAPH => graphs::add(to, graphs::child(rest::<u64>(given).get()?)?)?,
        ALLOCATION => {
            let place = Out::at(parameters.address() + REST);
            graphs::add_asked(to, place)?
        }
        FREE => graphs::release(to, rest::<u64>(given).get()?)?,
        CONDITIONAL => {
            let (node, made) = rest::<ConditionalNodeParams>(given).get()?.node()?;
            Out::at(parameters.address() + REST).put(made)?;
            graphs::add(to, node)?
        }
        _ => graphs::add(to, plain(given)?)?,
    };
    out.put(node)
}

fn get(node: u64, parameters: Out<Words>) -> Outcome {
    parameters.check()?;
    let node = graphs::node(node)?;
    let mut words = [0; 32];
    words[0] = u64::from(node.kind());
    parameters.put(words)?;
    let place = parameters.address() + REST;
    match node {
        GraphNode::Kernel(kernel) => Out::at(place).put(kernel.parameters()),
        GraphNode::Work(StreamWork::Copy(copy)) => Out::at(place).put(CopyParameters {
            flags: 0,
            reserved: 0,
            context: 0,
            copy,
        }),
        GraphNode::Work(StreamWork::Fill(fill)) => Out::at(place).put(fill),
        GraphNode::Work(StreamWork::Host(call)) => Out::at(place).put(call),
        GraphNode::Child(handle)
        | GraphNode::Wait(handle)
        | GraphNode::Record(handle)
        | GraphNode::Free(handle) => Out::at(place).put(handle),
        GraphNode::Allocate(allocation) => Out::at(place).put(allocation),
        GraphNode::Operations(operations) => Out::at(place).put(BatchMemOpParams::of(&operations)),
        GraphNode::Conditional(bodies) => Out::at(place).put(ConditionalNodeParams::of(&bodies)),
        GraphNode::Nothing => Ok(()),
    }
}

/// Changes a node. Memory, child graph and conditional nodes cannot be changed.
fn set(node: u64, parameters: In<Words>) -> Outcome {
    match plain(parameters)? {
        GraphNode::Kernel(kernel) => kernel_nodes::set_to(node, kernel),
        to => graphs::set(node, to),
    }
}

fn change(exec: u64, node: u64, parameters: In<Words>) -> Outcome {
    if kind_of(parameters)? == GRAPH {
        return executables::change_child(exec, node, rest::<u64>(parameters).get()?);
    }
    match plain(parameters)? {
        GraphNode::Kernel(kernel) => kernel_nodes::change_to(exec, node, kernel),
        to => executables::change(exec, node, to),
    }
}
