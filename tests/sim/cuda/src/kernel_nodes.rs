//! Kernels in graphs: nodes that are added, captured, and changed in a graph that is executable already.

use crate::edges::Insertion;
use crate::error::{INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::functions;
use crate::graphs::{self, Node};
use crate::pointer::{In, Out};

/// `CUDA_KERNEL_NODE_PARAMS_v2`; the first version ends before the kernel.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Parameters {
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    arguments: u64,
    extra: u64,
    kernel: u64,
    context: u64,
}

/// The same without the last two.
type First = [u64; 7];

/// Where the first version says how large the grid and the blocks are: nobody asks.
const ONE: [u32; 3] = [1; 3];

exports! {
    cuGraphAddKernelNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, parameters: In<First>) = add_first => "cuGraphAddKernelNode" @ 10000;
    cuGraphAddKernelNode_v2(out: Out<u64>, graph: u64, after: In<u64>, count: usize, parameters: In<Parameters>) = add_node => "cuGraphAddKernelNode" @ 12000;
    cuGraphKernelNodeGetParams(node: u64, parameters: Out<First>) = get_first => "cuGraphKernelNodeGetParams" @ 10000;
    cuGraphKernelNodeGetParams_v2(node: u64, parameters: Out<Parameters>) = get => "cuGraphKernelNodeGetParams" @ 12000;
    cuGraphExecKernelNodeSetParams(exec: u64, node: u64, parameters: In<First>) = change_first => "cuGraphExecKernelNodeSetParams" @ 10010;
    cuGraphExecKernelNodeSetParams_v2(exec: u64, node: u64, parameters: In<Parameters>) = change => "cuGraphExecKernelNodeSetParams" @ 12000;
}

impl Parameters {
    fn of(function: u64) -> Self {
        Self {
            function,
            grid: ONE,
            block: ONE,
            shared_bytes: 0,
            arguments: 0,
            extra: 0,
            kernel: 0,
            context: 0,
        }
    }

    fn chosen(&self) -> u64 {
        match self.function {
            0 => self.kernel,
            function => function,
        }
    }
}

/// Adds a node that runs a function.
pub(crate) fn add(to: Insertion, function: u64) -> Result<u64, crate::error::Error> {
    functions::name(function)?;
    graphs::add(to, Node::Kernel(function))
}

fn add_first(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    parameters: In<First>,
) -> Outcome {
    out.check()?;
    let [function, ..] = parameters.get()?;
    out.put(add(Insertion::after(graph, after, count)?, function)?)
}

fn add_node(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    parameters: In<Parameters>,
) -> Outcome {
    out.check()?;
    let to = Insertion::after(graph, after, count)?;
    out.put(add(to, parameters.get()?.chosen())?)
}

fn function_of(node: u64) -> Result<u64, crate::error::Error> {
    match graphs::node(node)? {
        Node::Kernel(function) => Ok(function),
        _ => Err(INVALID_VALUE),
    }
}

fn get_first(node: u64, parameters: Out<First>) -> Outcome {
    let mut first = [0; 7];
    first[0] = function_of(node)?;
    parameters.put(first)
}

fn get(node: u64, parameters: Out<Parameters>) -> Outcome {
    parameters.put(Parameters::of(function_of(node)?))
}

fn change_to(exec: u64, node: u64, function: u64) -> Outcome {
    functions::name(function)?;
    function_of(node)?;
    graphs::change(exec, node, Node::Kernel(function))
}

fn change_first(exec: u64, node: u64, parameters: In<First>) -> Outcome {
    let [function, ..] = parameters.get()?;
    change_to(exec, node, function)
}

fn change(exec: u64, node: u64, parameters: In<Parameters>) -> Outcome {
    change_to(exec, node, parameters.get()?.chosen())
}
