//! Nodes whose parameters differ from the driver's: kernels are named by a host function, and for fills and
//! conditionals the driver needs the context.

use std::ffi::c_void;

use crate::code;
use crate::context;
use crate::driver::driver_functions;
use crate::entry::entry_points;
use crate::error::{CudartError, INVALID_VALUE, Outcome};
use crate::launch::Dim3;

type Graph = *mut c_void;
type Node = *mut c_void;

/// `cudaKernelNodeParams`, and `CUDA_KERNEL_NODE_PARAMS` of CUDA 10.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct KernelNodeParams {
    function: *mut c_void,
    grid: Dim3,
    block: Dim3,
    shared_bytes: u32,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
}

/// `cudaGraphNodeParams` and `CUgraphNodeParams`: a type, and the parameters in 29 words.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct GraphNodeParams {
    kind: u32,
    reserved: [i32; 3],
    words: [u64; 29],
    last: u64,
}

driver_functions! {
    cuGraphAddKernelNode(out: *mut Node, graph: Graph, dependencies: *const Node, count: usize, parameters: *const KernelNodeParams) => c"cuGraphAddKernelNode" @ 10000;
    cuGraphKernelNodeGetParams(node: Node, parameters: *mut KernelNodeParams) => c"cuGraphKernelNodeGetParams" @ 10000;
    cuGraphKernelNodeSetParams(node: Node, parameters: *const KernelNodeParams) => c"cuGraphKernelNodeSetParams" @ 10000;
    cuGraphExecKernelNodeSetParams(executable: *mut c_void, node: Node, parameters: *const KernelNodeParams) => c"cuGraphExecKernelNodeSetParams" @ 10010;
    cuGraphAddMemsetNode(out: *mut Node, graph: Graph, dependencies: *const Node, count: usize, parameters: *const c_void, context: *mut c_void) => c"cuGraphAddMemsetNode" @ 10000;
    cuGraphExecMemsetNodeSetParams(executable: *mut c_void, node: Node, parameters: *const c_void, context: *mut c_void) => c"cuGraphExecMemsetNodeSetParams" @ 10020;
    cuGraphConditionalHandleCreate(out: *mut u64, graph: Graph, context: *mut c_void, value: u32, flags: u32) => c"cuGraphConditionalHandleCreate" @ 12030;
    cuGraphAddNode(out: *mut Node, graph: Graph, dependencies: *const Node, count: usize, description: *mut GraphNodeParams) => c"cuGraphAddNode" @ 12020;
    cuGraphAddNode_v2(out: *mut Node, graph: Graph, dependencies: *const Node, edges: *const c_void, count: usize, description: *mut GraphNodeParams) => c"cuGraphAddNode" @ 12030;
}

entry_points! {
    context cudaGraphAddKernelNode(out: *mut Node, graph: Graph, dependencies: *const Node, count: usize, parameters: *const KernelNodeParams) = add_kernel;
    context cudaGraphKernelNodeGetParams(node: Node, parameters: *mut KernelNodeParams) = cuGraphKernelNodeGetParams;
    context cudaGraphKernelNodeSetParams(node: Node, parameters: *const KernelNodeParams) = set_kernel;
    context cudaGraphExecKernelNodeSetParams(executable: *mut c_void, node: Node, parameters: *const KernelNodeParams) = set_executable_kernel;
    context cudaGraphAddMemsetNode(out: *mut Node, graph: Graph, dependencies: *const Node, count: usize, parameters: *const c_void) = add_fill;
    context cudaGraphExecMemsetNodeSetParams(executable: *mut c_void, node: Node, parameters: *const c_void) = set_executable_fill;
    context cudaGraphConditionalHandleCreate(out: *mut u64, graph: Graph, value: u32, flags: u32) = create_condition;
    context cudaGraphAddNode_plain(out: *mut Node, graph: Graph, dependencies: *const Node, count: usize, description: *mut GraphNodeParams) = add;
    context cudaGraphAddNode_of_edges(out: *mut Node, graph: Graph, dependencies: *const Node, edges: *const c_void, count: usize, description: *mut GraphNodeParams) = add_with_edges;
}

/// The parameters with the driver's kernel instead of the host function.
fn resolved(parameters: *const KernelNodeParams) -> Result<KernelNodeParams, CudartError> {
    // SAFETY: a pointer that is not null points to a whole structure.
    let mut kernel = *unsafe { parameters.as_ref() }.ok_or(INVALID_VALUE)?;
    kernel.function = code::kernel(kernel.function)?;
    Ok(kernel)
}

fn add_kernel(
    out: *mut Node,
    graph: Graph,
    dependencies: *const Node,
    count: usize,
    parameters: *const KernelNodeParams,
) -> Outcome {
    let kernel = resolved(parameters)?;
    cuGraphAddKernelNode(out, graph, dependencies, count, &raw const kernel)
}

fn set_kernel(node: Node, parameters: *const KernelNodeParams) -> Outcome {
    let kernel = resolved(parameters)?;
    cuGraphKernelNodeSetParams(node, &raw const kernel)
}

fn set_executable_kernel(
    executable: *mut c_void,
    node: Node,
    parameters: *const KernelNodeParams,
) -> Outcome {
    let kernel = resolved(parameters)?;
    cuGraphExecKernelNodeSetParams(executable, node, &raw const kernel)
}

fn add_fill(
    out: *mut Node,
    graph: Graph,
    dependencies: *const Node,
    count: usize,
    parameters: *const c_void,
) -> Outcome {
    let context = context::current()?;
    cuGraphAddMemsetNode(out, graph, dependencies, count, parameters, context)
}

fn set_executable_fill(executable: *mut c_void, node: Node, parameters: *const c_void) -> Outcome {
    cuGraphExecMemsetNodeSetParams(executable, node, parameters, context::current()?)
}

fn create_condition(out: *mut u64, graph: Graph, value: u32, flags: u32) -> Outcome {
    cuGraphConditionalHandleCreate(out, graph, context::current()?, value, flags)
}

/// `cudaGraphNodeTypeKernel` and `cudaGraphNodeTypeConditional`.
const KERNEL: u32 = 0;
const CONDITIONAL: u32 = 13;
/// The index of the driver's context in the parameters of a conditional: after a handle, two numbers and an address.
const CONDITION_CONTEXT: usize = 3;

/// Adds a node. The driver may write results into the parameters.
fn with_description(
    description: *mut GraphNodeParams,
    ask: impl FnOnce(*mut GraphNodeParams) -> Outcome,
) -> Outcome {
    // SAFETY: a pointer that is not null points to a whole structure, which only this call uses.
    let given = unsafe { description.as_mut() }.ok_or(INVALID_VALUE)?;
    let mut own = *given;
    match own.kind {
        KERNEL => {
            let function = std::ptr::with_exposed_provenance::<c_void>(
                usize::try_from(own.words[0]).map_err(|_| INVALID_VALUE)?,
            );
            own.words[0] = code::kernel(function)?.expose_provenance() as u64;
        }
        CONDITIONAL => {
            own.words[CONDITION_CONTEXT] = context::current()?.expose_provenance() as u64
        }
        _ => {}
    }
    ask(&raw mut own)?;
    if own.kind != KERNEL {
        given.words = own.words;
    }
    Ok(())
}

fn add(
    out: *mut Node,
    graph: Graph,
    dependencies: *const Node,
    count: usize,
    description: *mut GraphNodeParams,
) -> Outcome {
    with_description(description, |own| {
        cuGraphAddNode(out, graph, dependencies, count, own)
    })
}

fn add_with_edges(
    out: *mut Node,
    graph: Graph,
    dependencies: *const Node,
    edges: *const c_void,
    count: usize,
    description: *mut GraphNodeParams,
) -> Outcome {
    with_description(description, |own| {
        cuGraphAddNode_v2(out, graph, dependencies, edges, count, own)
    })
}
