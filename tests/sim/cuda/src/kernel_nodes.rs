//! Kernels in graphs: nodes that are added, captured, asked for and changed, also in a graph that is executable already.
//!
//! No function is known to have parameters, so no node says what they were.

use std::collections::BTreeMap;

use crate::edges::Insertion;
use crate::error::{Error, INVALID_VALUE, Outcome};
use crate::executables;
use crate::export::exports;
use crate::functions::{self, Shape};
use crate::graphs::{self, Node};
use crate::pointer::{In, Out};

/// `CUDA_KERNEL_NODE_PARAMS_v2`; the first version ends before the kernel.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Parameters {
    first: First,
    kernel: u64,
    context: u64,
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct First {
    function: u64,
    shape: Shape,
    arguments: u64,
    extra: u64,
}

/// What a node launches.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    function: u64,
    shape: Shape,
    attributes: BTreeMap<u32, Attribute>,
}

/// `CUlaunchAttributeValue`.
type Attribute = [u64; 8];

/// The kinds of `CUlaunchAttributeID` that a node has: an access policy, cooperation, clusters and how they are
/// scheduled, priority, domains, and what devices may update.
const ATTRIBUTES: [u32; 10] = [1, 2, 4, 5, 8, 9, 10, 11, 13, 14];

exports! {
    cuGraphAddKernelNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, parameters: In<First>) = add_first => "cuGraphAddKernelNode" @ 10000;
    cuGraphAddKernelNode_v2(out: Out<u64>, graph: u64, after: In<u64>, count: usize, parameters: In<Parameters>) = add_node => "cuGraphAddKernelNode" @ 12000;
    cuGraphKernelNodeGetParams(node: u64, parameters: Out<First>) = get_first => "cuGraphKernelNodeGetParams" @ 10000;
    cuGraphKernelNodeGetParams_v2(node: u64, parameters: Out<Parameters>) = get => "cuGraphKernelNodeGetParams" @ 12000;
    cuGraphKernelNodeSetParams(node: u64, parameters: In<First>) = set_first => "cuGraphKernelNodeSetParams" @ 10000;
    cuGraphKernelNodeSetParams_v2(node: u64, parameters: In<Parameters>) = set => "cuGraphKernelNodeSetParams" @ 12000;
    cuGraphExecKernelNodeSetParams(exec: u64, node: u64, parameters: In<First>) = change_first => "cuGraphExecKernelNodeSetParams" @ 10010;
    cuGraphExecKernelNodeSetParams_v2(exec: u64, node: u64, parameters: In<Parameters>) = change => "cuGraphExecKernelNodeSetParams" @ 12000;
    cuGraphKernelNodeGetAttribute(node: u64, attribute: u32, value: Out<Attribute>) = get_attribute => "cuGraphKernelNodeGetAttribute" @ 11000;
    cuGraphKernelNodeSetAttribute(node: u64, attribute: u32, value: In<Attribute>) = set_attribute => "cuGraphKernelNodeSetAttribute" @ 11000;
    cuGraphKernelNodeCopyAttributes(to: u64, from: u64) = copy_attributes => "cuGraphKernelNodeCopyAttributes" @ 11000;
}

impl Kernel {
    /// A launch that is possible.
    pub(crate) fn new(function: u64, shape: Shape) -> Result<Self, Error> {
        functions::name(function)?;
        Ok(Self {
            function,
            shape: shape.checked()?,
            attributes: BTreeMap::new(),
        })
    }

    /// Launches it.
    pub(crate) fn start(&self) -> Outcome {
        functions::start(self.function)
    }

    /// The name of what is launched.
    pub(crate) fn name(&self) -> String {
        let name = functions::name(self.function);
        name.map_or_else(
            |_| String::new(),
            |name| name.to_string_lossy().into_owned(),
        )
    }

    /// Of a node, if it is one of these.
    fn of(node: u64) -> Result<Self, Error> {
        match graphs::node(node)? {
            Node::Kernel(kernel) => Ok(kernel),
            _ => Err(INVALID_VALUE),
        }
    }

    /// As a program asks for it.
    pub(crate) fn parameters(&self) -> Parameters {
        let first = First {
            function: self.function,
            shape: self.shape,
            arguments: 0,
            extra: 0,
        };
        Parameters {
            first,
            kernel: 0,
            context: 0,
        }
    }
}

impl First {
    fn kernel(self) -> Result<Kernel, Error> {
        Kernel::new(self.function, self.shape)
    }
}

impl Parameters {
    /// Launches the kernel where there is no function.
    pub(crate) fn kernel(self) -> Result<Kernel, Error> {
        let function = match self.first.function {
            0 => self.kernel,
            function => function,
        };
        Kernel::new(function, self.first.shape)
    }
}

/// What a node launches now, with the attributes that it has.
fn with_attributes_of(node: u64, kernel: Kernel) -> Result<Node, Error> {
    let attributes = Kernel::of(node)?.attributes;
    Ok(Node::Kernel(Kernel {
        attributes,
        ..kernel
    }))
}

fn add(out: Out<u64>, to: Insertion, kernel: Kernel) -> Outcome {
    out.put(graphs::add(to, Node::Kernel(kernel))?)
}

fn add_first(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    parameters: In<First>,
) -> Outcome {
    out.check()?;
    let kernel = parameters.get()?.kernel()?;
    add(out, Insertion::after(graph, after, count)?, kernel)
}

fn add_node(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    parameters: In<Parameters>,
) -> Outcome {
    out.check()?;
    let kernel = parameters.get()?.kernel()?;
    add(out, Insertion::after(graph, after, count)?, kernel)
}

fn get_first(node: u64, parameters: Out<First>) -> Outcome {
    parameters.put(Kernel::of(node)?.parameters().first)
}

fn get(node: u64, parameters: Out<Parameters>) -> Outcome {
    parameters.put(Kernel::of(node)?.parameters())
}

/// Changes what a node launches.
pub(crate) fn set_to(node: u64, kernel: Kernel) -> Outcome {
    graphs::set(node, with_attributes_of(node, kernel)?)
}

fn set_first(node: u64, parameters: In<First>) -> Outcome {
    set_to(node, parameters.get()?.kernel()?)
}

fn set(node: u64, parameters: In<Parameters>) -> Outcome {
    set_to(node, parameters.get()?.kernel()?)
}

/// The same in an executable graph.
pub(crate) fn change_to(exec: u64, node: u64, kernel: Kernel) -> Outcome {
    executables::change(exec, node, with_attributes_of(node, kernel)?)
}

fn change_first(exec: u64, node: u64, parameters: In<First>) -> Outcome {
    change_to(exec, node, parameters.get()?.kernel()?)
}

fn change(exec: u64, node: u64, parameters: In<Parameters>) -> Outcome {
    change_to(exec, node, parameters.get()?.kernel()?)
}

fn check_attribute(attribute: u32) -> Outcome {
    match ATTRIBUTES.contains(&attribute) {
        true => Ok(()),
        false => Err(INVALID_VALUE),
    }
}

/// What was never set is zero.
fn get_attribute(node: u64, attribute: u32, value: Out<Attribute>) -> Outcome {
    value.check()?;
    check_attribute(attribute)?;
    let known = Kernel::of(node)?.attributes.remove(&attribute);
    value.put(known.unwrap_or_default())
}

fn set_attribute(node: u64, attribute: u32, value: In<Attribute>) -> Outcome {
    check_attribute(attribute)?;
    let mut kernel = Kernel::of(node)?;
    kernel.attributes.insert(attribute, value.get()?);
    graphs::set(node, Node::Kernel(kernel))
}

fn copy_attributes(to: u64, from: u64) -> Outcome {
    let attributes = Kernel::of(from)?.attributes;
    let kernel = Kernel::of(to)?;
    let copied = Kernel {
        attributes,
        ..kernel
    };
    graphs::set(to, Node::Kernel(copied))
}
