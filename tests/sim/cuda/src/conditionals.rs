//! Conditional nodes: graphs in a node that run on a condition. They are empty when the node is made, and the
//! program fills them. A copy of a graph has them, too.

use std::collections::HashMap;
use std::sync::Arc;

use crate::driver::tables;
use crate::edges::{Edge, EdgeData, Insertion};
use crate::error::{Error, INVALID_VALUE, NOT_SUPPORTED, Outcome};
use crate::export::exports;
use crate::graphs::{self, Node};
use crate::pointer::{In, Out};

/// `CUgraphNodeParams`, in words: the kind, two that are reserved, and what each kind goes on with.
type Parameters = [u64; 32];

/// `CU_GRAPH_NODE_TYPE_CONDITIONAL`.
const CONDITIONAL: u64 = 13;

exports! {
    cuGraphConditionalHandleCreate(out: Out<u64>, graph: u64, context: u64, value: u32, flags: u32) = create_handle => "cuGraphConditionalHandleCreate" @ 12030;
    cuGraphAddNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, parameters: Out<Parameters>) = add => "cuGraphAddNode" @ 12020;
    cuGraphAddNode_v2(out: Out<u64>, graph: u64, after: In<u64>, data: In<EdgeData>, count: usize, parameters: Out<Parameters>) = add_after => "cuGraphAddNode" @ 12030;
    cuGraphNodeGetParams(node: u64, parameters: Out<Parameters>) = get => "cuGraphNodeGetParams" @ 13020;
    cuGraphClone(out: Out<u64>, graph: u64) = clone => "cuGraphClone" @ 10000;
    cuGraphNodeFindInClone(out: Out<u64>, original: u64, clone: u64) = find_in_clone => "cuGraphNodeFindInClone" @ 10000;
}

fn create_handle(out: Out<u64>, _graph: u64, _context: u64, _value: u32, _flags: u32) -> Outcome {
    out.check()?;
    out.put(tables().fresh())
}

fn add(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
    parameters: Out<Parameters>,
) -> Outcome {
    add_after(out, graph, after, In::null(), count, parameters)
}

fn add_after(
    out: Out<u64>,
    graph: u64,
    after: In<u64>,
    data: In<EdgeData>,
    count: usize,
    parameters: Out<Parameters>,
) -> Outcome {
    out.check()?;
    let mut asked = parameters.read()?;
    if asked[0] != CONDITIONAL {
        return Err(NOT_SUPPORTED);
    }
    let bodies = asked[3] >> 32;
    if bodies == 0 {
        return Err(INVALID_VALUE);
    }
    let to = Insertion::with_data(graph, after, data, count)?;
    let bodies: Arc<[u64]> = (0..bodies).map(|_| graphs::empty()).collect();
    asked[4] = address(&bodies);
    out.put(graphs::add(to, Node::Conditional(bodies))?)?;
    parameters.put(asked)
}

fn get(node: u64, parameters: Out<Parameters>) -> Outcome {
    let Node::Conditional(bodies) = graphs::node(node)? else {
        return Err(NOT_SUPPORTED);
    };
    let mut all = [0; 32];
    all[0] = CONDITIONAL;
    all[3] = (bodies.len() as u64) << 32;
    all[4] = address(&bodies);
    parameters.put(all)
}

fn clone(out: Out<u64>, graph: u64) -> Outcome {
    out.check()?;
    out.put(copy(graph)?)
}

/// A graph with the same nodes and edges.
fn copy(graph: u64) -> Result<u64, Error> {
    let nodes = graphs::nodes_of(graph)?;
    let edges = tables().graphs.edges_mut(graph)?.clone();
    let copy = graphs::empty();
    let mut copies = HashMap::new();
    for handle in nodes {
        let to = Insertion {
            graph: copy,
            dependencies: Vec::new(),
            stream: None,
        };
        copies.insert(handle, graphs::add(to, graphs::node(handle)?)?);
    }
    let mut tables = tables();
    let copied = |edge: Edge| {
        let (from, to) = (*copies.get(&edge.from)?, *copies.get(&edge.to)?);
        Some(Edge { from, to, ..edge })
    };
    *tables.graphs.edges_mut(copy)? = edges.into_iter().filter_map(copied).collect();
    tables.graphs.note_clone(copy, copies);
    Ok(copy)
}

/// The node of a copy that one of the original became.
fn find_in_clone(out: Out<u64>, original: u64, clone: u64) -> Outcome {
    out.check()?;
    let found = tables().graphs.in_clone(clone, original);
    out.put(found.ok_or(INVALID_VALUE)?)
}

/// Where the handles of the bodies are, for as long as the node lives.
fn address(bodies: &Arc<[u64]>) -> u64 {
    bodies.as_ptr().expose_provenance() as u64
}
