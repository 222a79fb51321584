//! Nodes that a program adds to a graph itself: fills, copies and functions of the host, and changing what these do in
//! a graph that is executable already.

use std::sync::Arc;

use crate::captured_work::{COPY, FILL, HOST, Work};
use crate::copy_rows::{self, Wide3D};
use crate::edges::Insertion;
use crate::error::{INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::fill::fill_rows;
use crate::graphs::{self, Node};
use crate::pointer::{In, Out};
use crate::stream::HostFunction;

/// `CUDA_MEMSET_NODE_PARAMS`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Fill {
    address: u64,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct HostCall {
    function: HostFunction,
    data: u64,
}

exports! {
    cuGraphAddMemsetNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, fill: In<Fill>, context: u64) = add_fill => "cuGraphAddMemsetNode" @ 10000;
    cuGraphAddMemcpyNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, copy: In<Wide3D>, context: u64) = add_copy => "cuGraphAddMemcpyNode" @ 10000;
    cuGraphAddHostNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, call: In<HostCall>) = add_host => "cuGraphAddHostNode" @ 10000;
    cuGraphExecMemsetNodeSetParams(exec: u64, node: u64, fill: In<Fill>, context: u64) = change_fill => "cuGraphExecMemsetNodeSetParams" @ 10020;
    cuGraphExecMemcpyNodeSetParams(exec: u64, node: u64, copy: In<Wide3D>, context: u64) = change_copy => "cuGraphExecMemcpyNodeSetParams" @ 10020;
    cuGraphExecHostNodeSetParams(exec: u64, node: u64, call: In<HostCall>) = change_host => "cuGraphExecHostNodeSetParams" @ 10020;
}

fn work(kind: u32, run: impl Fn() -> Outcome + Send + Sync + 'static) -> Work {
    let run = Arc::new(run);
    Work { kind, run }
}

impl Fill {
    fn work(self) -> Result<Work, crate::error::Error> {
        if self.width == 0 || self.height == 0 || ![1, 2, 4].contains(&self.element) {
            return Err(INVALID_VALUE);
        }
        let (address, pitch) = (self.address, self.pitch);
        let (width, height) = (self.width, self.height);
        let [first, second, ..] = self.value.to_le_bytes();
        Ok(work(FILL, move || match self.element {
            1 => fill_rows(address, pitch, first, width, height),
            2 => fill_rows(
                address,
                pitch,
                u16::from_le_bytes([first, second]),
                width,
                height,
            ),
            _ => fill_rows(address, pitch, self.value, width, height),
        }))
    }
}

fn copying(copy: In<Wide3D>) -> Result<Work, crate::error::Error> {
    let copy = copy.get()?;
    Ok(work(COPY, move || copy_rows::perform(&copy)))
}

impl HostCall {
    fn work(self) -> Result<Work, crate::error::Error> {
        let (function, data) = (self.function.ok_or(INVALID_VALUE)?, self.data);
        Ok(work(HOST, move || {
            // SAFETY: the caller gives a function to be called with this data at each launch of the graph.
            unsafe { function(data) };
            Ok(())
        }))
    }
}

fn add_fill(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    fill: In<Fill>,
    _context: u64,
) -> Outcome {
    out.check()?;
    let to = Insertion::after(graph, after, count)?;
    out.put(graphs::add(to, Node::Work(fill.get()?.work()?))?)
}

fn add_copy(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    copy: In<Wide3D>,
    _context: u64,
) -> Outcome {
    out.check()?;
    let to = Insertion::after(graph, after, count)?;
    out.put(graphs::add(to, Node::Work(copying(copy)?))?)
}

fn add_host(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    call: In<HostCall>,
) -> Outcome {
    out.check()?;
    let to = Insertion::after(graph, after, count)?;
    out.put(graphs::add(to, Node::Work(call.get()?.work()?))?)
}

/// A node stays of its kind.
fn change(exec: u64, node: u64, to: Work) -> Outcome {
    match graphs::node(node)? {
        Node::Work(known) if known.kind == to.kind => graphs::change(exec, node, Node::Work(to)),
        _ => Err(INVALID_VALUE),
    }
}

fn change_fill(exec: u64, node: u64, fill: In<Fill>, _context: u64) -> Outcome {
    change(exec, node, fill.get()?.work()?)
}

fn change_copy(exec: u64, node: u64, copy: In<Wide3D>, _context: u64) -> Outcome {
    change(exec, node, copying(copy)?)
}

fn change_host(exec: u64, node: u64, call: In<HostCall>) -> Outcome {
    change(exec, node, call.get()?.work()?)
}
