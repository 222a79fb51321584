//! Ids by which tools name graphs and nodes. They are unique in the process. A handle is never reused here, so the ids
//! are derived from the handles.

use crate::driver::tables;
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::executables;
use crate::export::exports;
use crate::graphs;
use crate::pointer::Out;
use crate::tables::number_of;

exports! {
    cuGraphGetId(graph: u64, id: Out<u32>) = of_graph => "cuGraphGetId" @ 13010;
    cuGraphExecGetId(exec: u64, id: Out<u32>) = of_executable => "cuGraphExecGetId" @ 13010;
    cuGraphNodeGetLocalId(node: u64, id: Out<u32>) = of_node => "cuGraphNodeGetLocalId" @ 13010;
    cuGraphNodeGetToolsId(node: u64, id: Out<u64>) = for_tools => "cuGraphNodeGetToolsId" @ 13010;
    cuGraphNodeGetContainingGraph(node: u64, graph: Out<u64>) = containing => "cuGraphNodeGetContainingGraph" @ 13010;
}

fn short(handle: u64) -> Result<u32, CudaError> {
    u32::try_from(number_of(handle)).map_err(|_| INVALID_VALUE)
}

fn of_graph(graph: u64, id: Out<u32>) -> Outcome {
    graphs::nodes_of(graph)?;
    id.put(short(graph)?)
}

fn of_executable(exec: u64, id: Out<u32>) -> Outcome {
    executables::check(exec)?;
    id.put(short(exec)?)
}

fn of_node(node: u64, id: Out<u32>) -> Outcome {
    graphs::node(node)?;
    id.put(short(node)?)
}

fn for_tools(node: u64, id: Out<u64>) -> Outcome {
    graphs::node(node)?;
    id.put(number_of(node))
}

fn containing(node: u64, graph: Out<u64>) -> Outcome {
    graph.check()?;
    let found = tables().graphs.graph_of(node);
    graph.put(found.ok_or(INVALID_VALUE)?)
}
