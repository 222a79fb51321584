//! Conditional nodes: nodes with body graphs that run on a condition. The bodies are empty when the node is made, and
//! the program fills them. A copy of the graph copies them too.

use std::collections::HashMap;
use std::sync::Arc;

use crate::driver::tables;
use crate::edges::{GraphEdge, NodeInsertion};
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::graphs::{self, GraphNode};
use crate::pointer::Out;
use crate::user_objects;

/// `CUDA_CONDITIONAL_NODE_PARAMS`: the driver returns the address of the body graphs' handles.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ConditionalNodeParams {
    handle: u64,
    kind: u32,
    count: u32,
    bodies: u64,
    context: u64,
}

exports! {
    cuGraphConditionalHandleCreate(out: Out<u64>, graph: u64, context: u64, value: u32, flags: u32) = create_handle => "cuGraphConditionalHandleCreate" @ 12030;
    cuGraphClone(out: Out<u64>, graph: u64) = clone => "cuGraphClone" @ 10000;
    cuGraphNodeFindInClone(out: Out<u64>, original: u64, clone: u64) = find_in_clone => "cuGraphNodeFindInClone" @ 10000;
}

fn create_handle(out: Out<u64>, _graph: u64, _context: u64, _value: u32, _flags: u32) -> Outcome {
    out.check()?;
    out.put(tables().fresh())
}

fn clone(out: Out<u64>, graph: u64) -> Outcome {
    out.check()?;
    out.put(copy(graph)?)
}

impl ConditionalNodeParams {
    /// A node with empty bodies, and the parameters with their address.
    pub(crate) fn node(mut self) -> Result<(GraphNode, Self), CudaError> {
        if self.count == 0 {
            return Err(INVALID_VALUE);
        }
        let bodies: Arc<[u64]> = (0..self.count).map(|_| graphs::empty()).collect();
        self.bodies = address(&bodies);
        Ok((GraphNode::Conditional(bodies), self))
    }

    /// The parameters of an existing node.
    pub(crate) fn of(bodies: &Arc<[u64]>) -> Self {
        Self {
            handle: 0,
            kind: 0,
            count: u32::try_from(bodies.len()).unwrap_or(u32::MAX),
            bodies: address(bodies),
            context: 0,
        }
    }
}

/// A graph with the same nodes and edges, and with references to the same objects.
pub(crate) fn copy(graph: u64) -> Result<u64, CudaError> {
    let nodes = graphs::nodes_of(graph)?;
    let edges = tables().graphs.edges_mut(graph)?.clone();
    let copy = graphs::empty();
    let mut copies = HashMap::new();
    for handle in nodes {
        let to = NodeInsertion {
            graph: copy,
            dependencies: Vec::new(),
            stream: None,
        };
        let node = match graphs::node(handle)? {
            GraphNode::Child(child) => graphs::child(child)?,
            node => node,
        };
        copies.insert(handle, graphs::add(to, node)?);
    }
    user_objects::retain_for_copy(graph, copy)?;
    let mut tables = tables();
    *tables.graphs.edges_mut(copy)? = edges
        .into_iter()
        .filter_map(|edge| {
            let (from, to) = (*copies.get(&edge.from)?, *copies.get(&edge.to)?);
            Some(GraphEdge { from, to, ..edge })
        })
        .collect();
    tables.graphs.note_clone(copy, copies);
    Ok(copy)
}

/// Finds the node of a clone that corresponds to a node of the original.
fn find_in_clone(out: Out<u64>, original: u64, clone: u64) -> Outcome {
    out.check()?;
    let found = tables().graphs.in_clone(clone, original);
    out.put(found.ok_or(INVALID_VALUE)?)
}

/// The address of the bodies' handles. Valid for as long as the node lives.
fn address(bodies: &Arc<[u64]>) -> u64 {
    bodies.as_ptr().expose_provenance() as u64
}
