//! Graphs: making, changing and launching them. Nodes that name a function or a symbol are in `graph_nodes`.

use std::ffi::{c_char, c_void};

use crate::default_stream::RuntimeStream;
use crate::entry::passed_on;

type Graph = *mut c_void;
type Node = *mut c_void;
type Nodes = *mut *mut c_void;
type Executable = *mut c_void;

passed_on! {
    context cudaGraphCreate(out: *mut Graph, flags: u32) => c"cuGraphCreate" @ 10000;
    context cudaGraphDestroy(graph: Graph) => c"cuGraphDestroy" @ 10000;
    context cudaGraphClone(out: *mut Graph, graph: Graph) => c"cuGraphClone" @ 10000;
    context cudaGraphDestroyNode(node: Node) => c"cuGraphDestroyNode" @ 10000;
    context cudaGraphNodeFindInClone(out: *mut Node, node: Node, clone: Graph) => c"cuGraphNodeFindInClone" @ 10000;
    context cudaGraphNodeGetType(node: Node, kind: *mut u32) => c"cuGraphNodeGetType" @ 10000;
    context cudaGraphGetNodes(graph: Graph, nodes: Nodes, count: *mut usize) => c"cuGraphGetNodes" @ 10000;
    context cudaGraphGetRootNodes(graph: Graph, nodes: Nodes, count: *mut usize) => c"cuGraphGetRootNodes" @ 10000;
    context cudaGraphGetEdges_plain(graph: Graph, from: Nodes, to: Nodes, count: *mut usize) => c"cuGraphGetEdges" @ 10000;
    context cudaGraphGetEdges_of_data(graph: Graph, from: Nodes, to: Nodes, edges: *mut c_void, count: *mut usize) => c"cuGraphGetEdges" @ 12030;
    context cudaGraphNodeGetDependencies_plain(node: Node, nodes: Nodes, count: *mut usize) => c"cuGraphNodeGetDependencies" @ 10000;
    context cudaGraphNodeGetDependencies_of_data(node: Node, nodes: Nodes, edges: *mut c_void, count: *mut usize) => c"cuGraphNodeGetDependencies" @ 12030;
    context cudaGraphNodeGetDependentNodes_plain(node: Node, nodes: Nodes, count: *mut usize) => c"cuGraphNodeGetDependentNodes" @ 10000;
    context cudaGraphNodeGetDependentNodes_of_data(node: Node, nodes: Nodes, edges: *mut c_void, count: *mut usize) => c"cuGraphNodeGetDependentNodes" @ 12030;
    context cudaGraphAddDependencies_plain(graph: Graph, from: *const Node, to: *const Node, count: usize) => c"cuGraphAddDependencies" @ 10000;
    context cudaGraphAddDependencies_of_data(graph: Graph, from: *const Node, to: *const Node, edges: *const c_void, count: usize) => c"cuGraphAddDependencies" @ 12030;
    context cudaGraphRemoveDependencies_plain(graph: Graph, from: *const Node, to: *const Node, count: usize) => c"cuGraphRemoveDependencies" @ 10000;
    context cudaGraphRemoveDependencies_of_data(graph: Graph, from: *const Node, to: *const Node, edges: *const c_void, count: usize) => c"cuGraphRemoveDependencies" @ 12030;
    context cudaGraphAddEmptyNode(out: *mut Node, graph: Graph, dependencies: *const Node, count: usize) => c"cuGraphAddEmptyNode" @ 10000;
    context cudaGraphAddHostNode(out: *mut Node, graph: Graph, dependencies: *const Node, count: usize, parameters: *const c_void) => c"cuGraphAddHostNode" @ 10000;
    context cudaGraphHostNodeGetParams(node: Node, parameters: *mut c_void) => c"cuGraphHostNodeGetParams" @ 10000;
    context cudaGraphHostNodeSetParams(node: Node, parameters: *const c_void) => c"cuGraphHostNodeSetParams" @ 10000;
    context cudaGraphAddChildGraphNode(out: *mut Node, graph: Graph, dependencies: *const Node, count: usize, child: Graph) => c"cuGraphAddChildGraphNode" @ 10000;
    context cudaGraphChildGraphNodeGetGraph(node: Node, out: *mut Graph) => c"cuGraphChildGraphNodeGetGraph" @ 10000;
    context cudaGraphAddEventRecordNode(out: *mut Node, graph: Graph, dependencies: *const Node, count: usize, event: *mut c_void) => c"cuGraphAddEventRecordNode" @ 11010;
    context cudaGraphAddEventWaitNode(out: *mut Node, graph: Graph, dependencies: *const Node, count: usize, event: *mut c_void) => c"cuGraphAddEventWaitNode" @ 11010;
    context cudaGraphEventRecordNodeGetEvent(node: Node, out: *mut *mut c_void) => c"cuGraphEventRecordNodeGetEvent" @ 11010;
    context cudaGraphEventRecordNodeSetEvent(node: Node, event: *mut c_void) => c"cuGraphEventRecordNodeSetEvent" @ 11010;
    context cudaGraphEventWaitNodeGetEvent(node: Node, out: *mut *mut c_void) => c"cuGraphEventWaitNodeGetEvent" @ 11010;
    context cudaGraphEventWaitNodeSetEvent(node: Node, event: *mut c_void) => c"cuGraphEventWaitNodeSetEvent" @ 11010;
    context cudaGraphAddMemAllocNode(out: *mut Node, graph: Graph, dependencies: *const Node, count: usize, parameters: *mut c_void) => c"cuGraphAddMemAllocNode" @ 11040;
    context cudaGraphMemAllocNodeGetParams(node: Node, parameters: *mut c_void) => c"cuGraphMemAllocNodeGetParams" @ 11040;
    context cudaGraphAddMemFreeNode(out: *mut Node, graph: Graph, dependencies: *const Node, count: usize, address: *mut c_void) => c"cuGraphAddMemFreeNode" @ 11040;
    context cudaGraphMemFreeNodeGetParams(node: Node, out: *mut c_void) => c"cuGraphMemFreeNodeGetParams" @ 11040;
    context cudaGraphMemsetNodeGetParams(node: Node, parameters: *mut c_void) => c"cuGraphMemsetNodeGetParams" @ 10000;
    context cudaGraphMemsetNodeSetParams(node: Node, parameters: *const c_void) => c"cuGraphMemsetNodeSetParams" @ 10000;
    context cudaGraphNodeSetEnabled(executable: Executable, node: Node, is_enabled: u32) => c"cuGraphNodeSetEnabled" @ 11060;
    context cudaGraphNodeGetEnabled(executable: Executable, node: Node, is_enabled: *mut u32) => c"cuGraphNodeGetEnabled" @ 11060;
    context cudaGraphKernelNodeCopyAttributes(to: Node, from: Node) => c"cuGraphKernelNodeCopyAttributes" @ 11000;
    context cudaGraphKernelNodeGetAttribute(node: Node, attribute: u32, value: *mut c_void) => c"cuGraphKernelNodeGetAttribute" @ 11000;
    context cudaGraphKernelNodeSetAttribute(node: Node, attribute: u32, value: *const c_void) => c"cuGraphKernelNodeSetAttribute" @ 11000;
    context cudaGraphInstantiate(out: *mut Executable, graph: Graph, flags: u64) => c"cuGraphInstantiateWithFlags" @ 11040;
    context cudaGraphInstantiateWithFlags(out: *mut Executable, graph: Graph, flags: u64) => c"cuGraphInstantiateWithFlags" @ 11040;
    context cudaGraphInstantiateWithParams(out: *mut Executable, graph: Graph, parameters: *mut c_void) => c"cuGraphInstantiateWithParams" @ 12000;
    context cudaGraphLaunch | cudaGraphLaunch_ptsz (executable: Executable, stream: RuntimeStream) => c"cuGraphLaunch" @ 10000;
    context cudaGraphUpload | cudaGraphUpload_ptsz (executable: Executable, stream: RuntimeStream) => c"cuGraphUpload" @ 11010;
    context cudaGraphExecDestroy(executable: Executable) => c"cuGraphExecDestroy" @ 10000;
    context cudaGraphExecGetFlags(executable: Executable, flags: *mut u64) => c"cuGraphExecGetFlags" @ 12000;
    context cudaGraphExecUpdate(executable: Executable, graph: Graph, result: *mut c_void) => c"cuGraphExecUpdate" @ 12000;
    context cudaGraphExecHostNodeSetParams(executable: Executable, node: Node, parameters: *const c_void) => c"cuGraphExecHostNodeSetParams" @ 10020;
    context cudaGraphExecChildGraphNodeSetParams(executable: Executable, node: Node, child: Graph) => c"cuGraphExecChildGraphNodeSetParams" @ 11010;
    context cudaGraphExecEventRecordNodeSetEvent(executable: Executable, node: Node, event: *mut c_void) => c"cuGraphExecEventRecordNodeSetEvent" @ 11010;
    context cudaGraphExecEventWaitNodeSetEvent(executable: Executable, node: Node, event: *mut c_void) => c"cuGraphExecEventWaitNodeSetEvent" @ 11010;
    context cudaGraphDebugDotPrint(graph: Graph, path: *const c_char, flags: u32) => c"cuGraphDebugDotPrint" @ 11030;
    context cudaUserObjectCreate(out: *mut *mut c_void, object: *mut c_void, destroy: *mut c_void, references: u32, flags: u32) => c"cuUserObjectCreate" @ 11030;
    context cudaUserObjectRetain(object: *mut c_void, count: u32) => c"cuUserObjectRetain" @ 11030;
    context cudaUserObjectRelease(object: *mut c_void, count: u32) => c"cuUserObjectRelease" @ 11030;
    context cudaGraphRetainUserObject(graph: Graph, object: *mut c_void, count: u32, flags: u32) => c"cuGraphRetainUserObject" @ 11030;
    context cudaGraphReleaseUserObject(graph: Graph, object: *mut c_void, count: u32) => c"cuGraphReleaseUserObject" @ 11030;
}
