//! Nodes that a program adds to a graph itself: fills, copies and host functions. They can be read and changed, also in
//! an executable graph.

use crate::captured_work::StreamWork;
use crate::copy_rows::Wide3D;
use crate::edges::NodeInsertion;
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::executables;
use crate::export::exports;
use crate::fill::MemsetNodeParams;
use crate::graphs::{self, GraphNode};
use crate::pointer::{In, Out};
use crate::stream::HostNodeParams;

exports! {
    cuGraphAddMemsetNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, fill: In<MemsetNodeParams>, context: u64) = add_fill => "cuGraphAddMemsetNode" @ 10000;
    cuGraphAddMemcpyNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, copy: In<Wide3D>, context: u64) = add_copy => "cuGraphAddMemcpyNode" @ 10000;
    cuGraphAddHostNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, call: In<HostNodeParams>) = add_host => "cuGraphAddHostNode" @ 10000;
    cuGraphMemsetNodeGetParams(node: u64, fill: Out<MemsetNodeParams>) = get_fill => "cuGraphMemsetNodeGetParams" @ 10000;
    cuGraphMemcpyNodeGetParams(node: u64, copy: Out<Wide3D>) = get_copy => "cuGraphMemcpyNodeGetParams" @ 10000;
    cuGraphHostNodeGetParams(node: u64, call: Out<HostNodeParams>) = get_host => "cuGraphHostNodeGetParams" @ 10000;
    cuGraphMemsetNodeSetParams(node: u64, fill: In<MemsetNodeParams>) = set_fill => "cuGraphMemsetNodeSetParams" @ 10000;
    cuGraphMemcpyNodeSetParams(node: u64, copy: In<Wide3D>) = set_copy => "cuGraphMemcpyNodeSetParams" @ 10000;
    cuGraphHostNodeSetParams(node: u64, call: In<HostNodeParams>) = set_host => "cuGraphHostNodeSetParams" @ 10000;
    cuGraphExecMemsetNodeSetParams(exec: u64, node: u64, fill: In<MemsetNodeParams>, context: u64) = change_fill => "cuGraphExecMemsetNodeSetParams" @ 10020;
    cuGraphExecMemcpyNodeSetParams(exec: u64, node: u64, copy: In<Wide3D>, context: u64) = change_copy => "cuGraphExecMemcpyNodeSetParams" @ 10020;
    cuGraphExecHostNodeSetParams(exec: u64, node: u64, call: In<HostNodeParams>) = change_host => "cuGraphExecHostNodeSetParams" @ 10020;
}

fn filling(fill: In<MemsetNodeParams>) -> Result<GraphNode, CudaError> {
    Ok(GraphNode::Work(StreamWork::Fill(fill.get()?.checked()?)))
}

fn copying(copy: In<Wide3D>) -> Result<GraphNode, CudaError> {
    Ok(GraphNode::Work(StreamWork::Copy(copy.get()?)))
}

fn calling(call: In<HostNodeParams>) -> Result<GraphNode, CudaError> {
    Ok(GraphNode::Work(StreamWork::Host(call.get()?.checked()?)))
}

fn work_of(node: u64) -> Result<StreamWork, CudaError> {
    match graphs::node(node)? {
        GraphNode::Work(work) => Ok(work),
        _ => Err(INVALID_VALUE),
    }
}

fn add(out: Out<u64>, graph: u64, after: In<u64>, count: usize, node: GraphNode) -> Outcome {
    out.check()?;
    out.put(graphs::add(
        NodeInsertion::after(graph, after, count)?,
        node,
    )?)
}

fn add_fill(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    fill: In<MemsetNodeParams>,
    _context: u64,
) -> Outcome {
    add(out, graph, after, count, filling(fill)?)
}

fn add_copy(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    copy: In<Wide3D>,
    _context: u64,
) -> Outcome {
    add(out, graph, after, count, copying(copy)?)
}

fn add_host(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    call: In<HostNodeParams>,
) -> Outcome {
    add(out, graph, after, count, calling(call)?)
}

fn get_fill(node: u64, fill: Out<MemsetNodeParams>) -> Outcome {
    match work_of(node)? {
        StreamWork::Fill(known) => fill.put(known),
        StreamWork::Copy(_) | StreamWork::Host(_) => Err(INVALID_VALUE),
    }
}

fn get_copy(node: u64, copy: Out<Wide3D>) -> Outcome {
    match work_of(node)? {
        StreamWork::Copy(known) => copy.put(known),
        StreamWork::Fill(_) | StreamWork::Host(_) => Err(INVALID_VALUE),
    }
}

fn get_host(node: u64, call: Out<HostNodeParams>) -> Outcome {
    match work_of(node)? {
        StreamWork::Host(known) => call.put(known),
        StreamWork::Copy(_) | StreamWork::Fill(_) => Err(INVALID_VALUE),
    }
}

fn set_fill(node: u64, fill: In<MemsetNodeParams>) -> Outcome {
    graphs::set(node, filling(fill)?)
}

fn set_copy(node: u64, copy: In<Wide3D>) -> Outcome {
    graphs::set(node, copying(copy)?)
}

fn set_host(node: u64, call: In<HostNodeParams>) -> Outcome {
    graphs::set(node, calling(call)?)
}

fn change_fill(exec: u64, node: u64, fill: In<MemsetNodeParams>, _context: u64) -> Outcome {
    executables::change(exec, node, filling(fill)?)
}

fn change_copy(exec: u64, node: u64, copy: In<Wide3D>, _context: u64) -> Outcome {
    executables::change(exec, node, copying(copy)?)
}

fn change_host(exec: u64, node: u64, call: In<HostNodeParams>) -> Outcome {
    executables::change(exec, node, calling(call)?)
}
