//! Kernels in graphs: nodes that are added, captured, read and changed, also in an executable graph.
//!
//! No parameters of a function are known, so no node returns them.

use std::collections::BTreeMap;

use crate::edges::NodeInsertion;
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::executables;
use crate::export::exports;
use crate::functions::{self, LaunchShape};
use crate::graphs::{self, GraphNode};
use crate::pointer::{In, Out};

/// `CUDA_KERNEL_NODE_PARAMS_v2`. The first version ends before the kernel.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct KernelNodeParamsV2 {
    first: KernelNodeParamsV1,
    kernel: u64,
    context: u64,
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct KernelNodeParamsV1 {
    function: u64,
    shape: LaunchShape,
    arguments: u64,
    extra: u64,
}

/// What a node launches.
#[derive(Debug, Clone)]
pub(crate) struct KernelLaunch {
    function: u64,
    shape: LaunchShape,
    attributes: BTreeMap<u32, Attribute>,
}

/// `CUlaunchAttributeValue`.
type Attribute = [u64; 8];

/// The `CUlaunchAttributeID` values of a kernel node: access policy, cooperative launch, clusters and their scheduling,
/// priority, memory domains, and device updates.
const ATTRIBUTES: [u32; 10] = [1, 2, 4, 5, 8, 9, 10, 11, 13, 14];

exports! {
    cuGraphAddKernelNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, parameters: In<KernelNodeParamsV1>) = add_first => "cuGraphAddKernelNode" @ 10000;
    cuGraphAddKernelNode_v2(out: Out<u64>, graph: u64, after: In<u64>, count: usize, parameters: In<KernelNodeParamsV2>) = add_node => "cuGraphAddKernelNode" @ 12000;
    cuGraphKernelNodeGetParams(node: u64, parameters: Out<KernelNodeParamsV1>) = get_first => "cuGraphKernelNodeGetParams" @ 10000;
    cuGraphKernelNodeGetParams_v2(node: u64, parameters: Out<KernelNodeParamsV2>) = get => "cuGraphKernelNodeGetParams" @ 12000;
    cuGraphKernelNodeSetParams(node: u64, parameters: In<KernelNodeParamsV1>) = set_first => "cuGraphKernelNodeSetParams" @ 10000;
    cuGraphKernelNodeSetParams_v2(node: u64, parameters: In<KernelNodeParamsV2>) = set => "cuGraphKernelNodeSetParams" @ 12000;
    cuGraphExecKernelNodeSetParams(exec: u64, node: u64, parameters: In<KernelNodeParamsV1>) = change_first => "cuGraphExecKernelNodeSetParams" @ 10010;
    cuGraphExecKernelNodeSetParams_v2(exec: u64, node: u64, parameters: In<KernelNodeParamsV2>) = change => "cuGraphExecKernelNodeSetParams" @ 12000;
    cuGraphKernelNodeGetAttribute(node: u64, attribute: u32, value: Out<Attribute>) = get_attribute => "cuGraphKernelNodeGetAttribute" @ 11000;
    cuGraphKernelNodeSetAttribute(node: u64, attribute: u32, value: In<Attribute>) = set_attribute => "cuGraphKernelNodeSetAttribute" @ 11000;
    cuGraphKernelNodeCopyAttributes(to: u64, from: u64) = copy_attributes => "cuGraphKernelNodeCopyAttributes" @ 11000;
}

impl KernelLaunch {
    /// Fails if the launch is not possible.
    pub(crate) fn new(function: u64, shape: LaunchShape) -> Result<Self, CudaError> {
        functions::name(function)?;
        Ok(Self {
            function,
            shape: shape.checked()?,
            attributes: BTreeMap::new(),
        })
    }

    pub(crate) fn start(&self) -> Outcome {
        functions::start(self.function)
    }

    /// The name of the function.
    pub(crate) fn name(&self) -> String {
        let name = functions::name(self.function);
        name.map_or_else(
            |_| String::new(),
            |name| name.to_string_lossy().into_owned(),
        )
    }

    /// The launch of a node, if it is a kernel node.
    fn of(node: u64) -> Result<Self, CudaError> {
        match graphs::node(node)? {
            GraphNode::Kernel(kernel) => Ok(kernel),
            _ => Err(INVALID_VALUE),
        }
    }

    /// The launch as the driver's parameter structure.
    pub(crate) fn parameters(&self) -> KernelNodeParamsV2 {
        let first = KernelNodeParamsV1 {
            function: self.function,
            shape: self.shape,
            arguments: 0,
            extra: 0,
        };
        KernelNodeParamsV2 {
            first,
            kernel: 0,
            context: 0,
        }
    }
}

impl KernelNodeParamsV1 {
    fn kernel(self) -> Result<KernelLaunch, CudaError> {
        KernelLaunch::new(self.function, self.shape)
    }
}

impl KernelNodeParamsV2 {
    /// If there is no function, launches the kernel.
    pub(crate) fn kernel(self) -> Result<KernelLaunch, CudaError> {
        let function = match self.first.function {
            0 => self.kernel,
            function => function,
        };
        KernelLaunch::new(function, self.first.shape)
    }
}

/// The node's new launch. It keeps the node's attributes.
fn with_attributes_of(node: u64, kernel: KernelLaunch) -> Result<GraphNode, CudaError> {
    let attributes = KernelLaunch::of(node)?.attributes;
    Ok(GraphNode::Kernel(KernelLaunch {
        attributes,
        ..kernel
    }))
}

fn add(out: Out<u64>, to: NodeInsertion, kernel: KernelLaunch) -> Outcome {
    out.put(graphs::add(to, GraphNode::Kernel(kernel))?)
}

fn add_first(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    parameters: In<KernelNodeParamsV1>,
) -> Outcome {
    out.check()?;
    let kernel = parameters.get()?.kernel()?;
    add(out, NodeInsertion::after(graph, after, count)?, kernel)
}

fn add_node(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    parameters: In<KernelNodeParamsV2>,
) -> Outcome {
    out.check()?;
    let kernel = parameters.get()?.kernel()?;
    add(out, NodeInsertion::after(graph, after, count)?, kernel)
}

fn get_first(node: u64, parameters: Out<KernelNodeParamsV1>) -> Outcome {
    parameters.put(KernelLaunch::of(node)?.parameters().first)
}

fn get(node: u64, parameters: Out<KernelNodeParamsV2>) -> Outcome {
    parameters.put(KernelLaunch::of(node)?.parameters())
}

/// Changes what a node launches.
pub(crate) fn set_to(node: u64, kernel: KernelLaunch) -> Outcome {
    graphs::set(node, with_attributes_of(node, kernel)?)
}

fn set_first(node: u64, parameters: In<KernelNodeParamsV1>) -> Outcome {
    set_to(node, parameters.get()?.kernel()?)
}

fn set(node: u64, parameters: In<KernelNodeParamsV2>) -> Outcome {
    set_to(node, parameters.get()?.kernel()?)
}

/// The same in an executable graph.
pub(crate) fn change_to(exec: u64, node: u64, kernel: KernelLaunch) -> Outcome {
    executables::change(exec, node, with_attributes_of(node, kernel)?)
}

fn change_first(exec: u64, node: u64, parameters: In<KernelNodeParamsV1>) -> Outcome {
    change_to(exec, node, parameters.get()?.kernel()?)
}

fn change(exec: u64, node: u64, parameters: In<KernelNodeParamsV2>) -> Outcome {
    change_to(exec, node, parameters.get()?.kernel()?)
}

fn check_attribute(attribute: u32) -> Outcome {
    if ATTRIBUTES.contains(&attribute) {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

/// An attribute that was never set is zero.
fn get_attribute(node: u64, attribute: u32, value: Out<Attribute>) -> Outcome {
    value.check()?;
    check_attribute(attribute)?;
    let known = KernelLaunch::of(node)?.attributes.remove(&attribute);
    value.put(known.unwrap_or_default())
}

fn set_attribute(node: u64, attribute: u32, value: In<Attribute>) -> Outcome {
    check_attribute(attribute)?;
    let mut kernel = KernelLaunch::of(node)?;
    kernel.attributes.insert(attribute, value.get()?);
    graphs::set(node, GraphNode::Kernel(kernel))
}

fn copy_attributes(to: u64, from: u64) -> Outcome {
    let attributes = KernelLaunch::of(from)?.attributes;
    let kernel = KernelLaunch::of(to)?;
    let copied = KernelLaunch {
        attributes,
        ..kernel
    };
    graphs::set(to, GraphNode::Kernel(copied))
}
