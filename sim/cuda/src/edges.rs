//! Dependencies between the nodes of a graph: edges with data, as documented for `cuGraphGetEdges`,
//! `cuGraphAddDependencies` and `cuGraphNodeGetDependencies`. A launch keeps their order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use crate::driver::tables;
use crate::error::{CudaError, INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::graphs::Graphs;
use crate::pointer::{In, Out};

/// `CUgraphEdgeData`: two ports, a type, and five reserved bytes. All zero is the default.
pub(crate) type EdgeData = [u8; 8];

/// A dependency of a node that does not exist yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeDependency {
    pub(crate) node: u64,
    pub(crate) data: EdgeData,
}

/// A dependency of `to` on `from`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GraphEdge {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) data: EdgeData,
}

/// The graph and the dependencies of a new node.
#[derive(Debug, Clone)]
pub(crate) struct NodeInsertion {
    pub(crate) graph: u64,
    pub(crate) dependencies: Vec<NodeDependency>,
    /// The captured stream that the node's work was given to.
    pub(crate) stream: Option<u64>,
}

const DEFAULT: EdgeData = [0; 8];
/// `CUDA_ERROR_LOSSY_QUERY`.
pub(crate) const LOSSY_QUERY: CudaError = CudaError(402);

exports! {
    cuGraphAddDependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) = add_v1 => "cuGraphAddDependencies" @ 10000;
    cuGraphAddDependencies_v2(graph: u64, from: In<u64>, to: In<u64>, data: In<EdgeData>, count: usize) = add => "cuGraphAddDependencies" @ 12030;
    cuGraphRemoveDependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) = remove_v1 => "cuGraphRemoveDependencies" @ 10000;
    cuGraphRemoveDependencies_v2(graph: u64, from: In<u64>, to: In<u64>, data: In<EdgeData>, count: usize) = remove => "cuGraphRemoveDependencies" @ 12030;
    cuGraphGetEdges(graph: u64, from: Out<u64>, to: Out<u64>, count: Out<usize>) = get_edges_v1 => "cuGraphGetEdges" @ 10000;
    cuGraphGetEdges_v2(graph: u64, from: Out<u64>, to: Out<u64>, data: Out<EdgeData>, count: Out<usize>) = get_edges => "cuGraphGetEdges" @ 12030;
    cuGraphGetRootNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) = get_roots => "cuGraphGetRootNodes" @ 10000;
    cuGraphNodeGetDependencies(node: u64, nodes: Out<u64>, count: Out<usize>) = get_dependencies_v1 => "cuGraphNodeGetDependencies" @ 10000;
    cuGraphNodeGetDependencies_v2(node: u64, nodes: Out<u64>, data: Out<EdgeData>, count: Out<usize>) = get_dependencies => "cuGraphNodeGetDependencies" @ 12030;
    cuGraphNodeGetDependentNodes(node: u64, nodes: Out<u64>, count: Out<usize>) = get_dependents_v1 => "cuGraphNodeGetDependentNodes" @ 10000;
    cuGraphNodeGetDependentNodes_v2(node: u64, nodes: Out<u64>, data: Out<EdgeData>, count: Out<usize>) = get_dependents => "cuGraphNodeGetDependentNodes" @ 12030;
}

impl NodeDependency {
    /// The dependencies that a caller names: nodes of one graph, each once. Without data, all edges have the default.
    pub(crate) fn named(
        graph: u64,
        nodes: In<u64>,
        data: In<EdgeData>,
        count: usize,
    ) -> Result<Vec<Self>, CudaError> {
        let mut all = Vec::new();
        for at in 0..count {
            let (node, data) = (nodes.at(at)?, data_at(data, at)?);
            all.push(Self { node, data });
        }
        let tables = tables();
        let mut seen = HashSet::new();
        let mut each = all.iter();
        let is_valid = each
            .all(|one| tables.graphs.graph_of(one.node) == Some(graph) && seen.insert(one.node));
        if is_valid {
            Ok(all)
        } else {
            Err(INVALID_VALUE)
        }
    }
}

impl NodeInsertion {
    /// Behind the nodes that a caller names.
    pub(crate) fn after(graph: u64, nodes: In<u64>, count: usize) -> Result<Self, CudaError> {
        Self::with_data(graph, nodes, In::null(), count)
    }

    /// The same, with data of the edges.
    pub(crate) fn with_data(
        graph: u64,
        nodes: In<u64>,
        data: In<EdgeData>,
        count: usize,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            graph,
            dependencies: NodeDependency::named(graph, nodes, data, count)?,
            stream: None,
        })
    }
}

/// The nodes in topological order, otherwise in the order in which they were added. None if there is a cycle.
pub(crate) fn ordered(nodes: &[u64], edges: &[GraphEdge]) -> Option<Vec<u64>> {
    let places: HashMap<u64, usize> = nodes.iter().copied().zip(0..).collect();
    let mut waits = vec![0_usize; nodes.len()];
    let mut dependents = vec![Vec::new(); nodes.len()];
    for edge in edges {
        let (from, to) = (*places.get(&edge.from)?, *places.get(&edge.to)?);
        waits[to] += 1;
        dependents[from].push(to);
    }
    let ready = (0..nodes.len()).filter(|at| waits[*at] == 0);
    let mut ready: BinaryHeap<Reverse<usize>> = ready.map(Reverse).collect();
    let mut order = Vec::new();
    while let Some(Reverse(at)) = ready.pop() {
        order.push(nodes[at]);
        for dependent in &dependents[at] {
            waits[*dependent] -= 1;
            if waits[*dependent] == 0 {
                ready.push(Reverse(*dependent));
            }
        }
    }
    (order.len() == nodes.len()).then_some(order)
}

/// The given nodes and all their direct and indirect dependencies.
pub(crate) fn reachable(edges: &[GraphEdge], from: impl Iterator<Item = u64>) -> HashSet<u64> {
    let mut before: HashMap<u64, Vec<u64>> = HashMap::new();
    for edge in edges {
        before.entry(edge.to).or_default().push(edge.from);
    }
    let mut open: Vec<u64> = from.collect();
    let mut found = HashSet::new();
    while let Some(node) = open.pop() {
        if found.insert(node) {
            open.extend(before.get(&node).into_iter().flatten());
        }
    }
    found
}

fn data_at(data: In<EdgeData>, at: usize) -> Result<EdgeData, CudaError> {
    if data.is_null() {
        Ok(DEFAULT)
    } else {
        data.at(at)
    }
}

/// The edges that a caller names. They must be between nodes of the graph.
fn named(
    graphs: &Graphs,
    graph: u64,
    from: In<u64>,
    to: In<u64>,
    data: In<EdgeData>,
    count: usize,
) -> Result<Vec<GraphEdge>, CudaError> {
    let is_here = |node| graphs.graph_of(node) == Some(graph);
    (0..count)
        .map(|at| {
            let (from, to, data) = (from.at(at)?, to.at(at)?, data_at(data, at)?);
            if is_here(from) && is_here(to) {
                Ok(GraphEdge { from, to, data })
            } else {
                Err(INVALID_VALUE)
            }
        })
        .collect()
}

/// Adds all edges, or none.
fn add(graph: u64, from: In<u64>, to: In<u64>, data: In<EdgeData>, count: usize) -> Outcome {
    let mut tables = tables();
    let new = named(&tables.graphs, graph, from, to, data, count)?;
    let edges = tables.graphs.edges_mut(graph)?;
    let mut joined: HashSet<(u64, u64)> = edges.iter().map(|edge| (edge.from, edge.to)).collect();
    if !new.iter().all(|edge| joined.insert((edge.from, edge.to))) {
        return Err(INVALID_VALUE);
    }
    edges.extend(new);
    Ok(())
}

fn add_v1(graph: u64, from: In<u64>, to: In<u64>, count: usize) -> Outcome {
    add(graph, from, to, In::null(), count)
}

/// Removes all edges, or none. The edges of a graph with memory nodes cannot be removed.
fn remove(graph: u64, from: In<u64>, to: In<u64>, data: In<EdgeData>, count: usize) -> Outcome {
    let mut tables = tables();
    let gone = named(&tables.graphs, graph, from, to, data, count)?;
    let has_memory = tables.graphs.has_memory(graph)?;
    let edges = tables.graphs.edges_mut(graph)?;
    let mut left = edges.clone();
    for edge in &gone {
        let place = left.iter().position(|known| known == edge);
        left.remove(place.filter(|_| !has_memory).ok_or(INVALID_VALUE)?);
    }
    *edges = left;
    Ok(())
}

fn remove_v1(graph: u64, from: In<u64>, to: In<u64>, count: usize) -> Outcome {
    remove(graph, from, to, In::null(), count)
}

/// Fills the caller's array: unused entries become null, and the count becomes the number of nodes returned. Without an
/// array, returns how many there are.
pub(crate) fn give(all: &[u64], nodes: Out<u64>, count: Out<usize>) -> Outcome {
    if nodes.check().is_err() {
        return count.put(all.len());
    }
    let room = count.read()?;
    for at in 0..room {
        nodes.put_at(at, all.get(at).copied().unwrap_or_default())?;
    }
    count.put(all.len().min(room))
}

/// The same for edge data. If the caller leaves no room for data that is not the default, the call fails.
fn give_data(all: &[EdgeData], has_nodes: bool, data: Out<EdgeData>, room: usize) -> Outcome {
    let all = &all[..all.len().min(room)];
    match (has_nodes, data.check().is_ok()) {
        (false, true) => Err(INVALID_VALUE),
        (true, false) if all.iter().any(|one| *one != DEFAULT) => Err(LOSSY_QUERY),
        (_, false) => Ok(()),
        (true, true) => (all.iter().enumerate()).try_for_each(|(at, one)| data.put_at(at, *one)),
    }
}

fn get_edges(
    graph: u64,
    from: Out<u64>,
    to: Out<u64>,
    data: Out<EdgeData>,
    count: Out<usize>,
) -> Outcome {
    count.check()?;
    if from.check() != to.check() {
        return Err(INVALID_VALUE);
    }
    let edges = tables().graphs.edges_mut(graph)?.clone();
    let has_nodes = from.check().is_ok();
    let mut room = if has_nodes {
        count.read()?
    } else {
        edges.len()
    };
    let all: Vec<EdgeData> = edges.iter().map(|edge| edge.data).collect();
    give_data(&all, has_nodes, data, room)?;
    let all: Vec<u64> = edges.iter().map(|edge| edge.from).collect();
    give(&all, from, Out::to(&mut room))?;
    let all: Vec<u64> = edges.iter().map(|edge| edge.to).collect();
    give(&all, to, count)
}

fn get_edges_v1(graph: u64, from: Out<u64>, to: Out<u64>, count: Out<usize>) -> Outcome {
    get_edges(graph, from, to, Out::null(), count)
}

/// The nodes without dependencies.
fn get_roots(graph: u64, nodes: Out<u64>, count: Out<usize>) -> Outcome {
    count.check()?;
    let mut all = crate::graphs::nodes_of(graph)?;
    let edges = tables().graphs.edges_mut(graph)?.clone();
    let behind: HashSet<u64> = edges.iter().map(|edge| edge.to).collect();
    all.retain(|node| !behind.contains(node));
    give(&all, nodes, count)
}

/// The nodes at the other end of a node's edges.
fn neighbours(
    node: u64,
    end: impl Fn(&GraphEdge) -> Option<u64>,
    nodes: Out<u64>,
    data: Out<EdgeData>,
    count: Out<usize>,
) -> Outcome {
    count.check()?;
    let found: Vec<(u64, EdgeData)> = {
        let mut tables = tables();
        let graph = tables.graphs.graph_of(node).ok_or(INVALID_VALUE)?;
        let edges = tables.graphs.edges_mut(graph)?.iter();
        edges
            .filter_map(|edge| Some((end(edge)?, edge.data)))
            .collect()
    };
    let (all, all_data): (Vec<u64>, Vec<EdgeData>) = found.into_iter().unzip();
    let has_nodes = nodes.check().is_ok();
    let room = if has_nodes { count.read()? } else { all.len() };
    give_data(&all_data, has_nodes, data, room)?;
    give(&all, nodes, count)
}

fn get_dependencies(node: u64, nodes: Out<u64>, data: Out<EdgeData>, count: Out<usize>) -> Outcome {
    neighbours(
        node,
        |edge| (edge.to == node).then_some(edge.from),
        nodes,
        data,
        count,
    )
}

fn get_dependencies_v1(node: u64, nodes: Out<u64>, count: Out<usize>) -> Outcome {
    get_dependencies(node, nodes, Out::null(), count)
}

fn get_dependents(node: u64, nodes: Out<u64>, data: Out<EdgeData>, count: Out<usize>) -> Outcome {
    neighbours(
        node,
        |edge| (edge.from == node).then_some(edge.to),
        nodes,
        data,
        count,
    )
}

fn get_dependents_v1(node: u64, nodes: Out<u64>, count: Out<usize>) -> Outcome {
    get_dependents(node, nodes, Out::null(), count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(from: u64, to: u64) -> GraphEdge {
        let data = DEFAULT;
        GraphEdge { from, to, data }
    }

    #[test]
    fn an_order_keeps_to_edges_and_otherwise_to_when_a_node_was_added() {
        let nodes = [10, 20, 30, 40];
        assert_eq!(ordered(&nodes, &[]), Some(nodes.to_vec()));
        let backwards = [edge(40, 10), edge(30, 20)];
        assert_eq!(ordered(&nodes, &backwards), Some(vec![30, 20, 40, 10]));
        assert_eq!(ordered(&nodes, &[edge(10, 20), edge(20, 10)]), None);
        assert_eq!(ordered(&nodes, &[edge(10, 10)]), None);
    }

    #[test]
    fn what_a_node_depends_on_is_found_through_others() {
        let edges = [edge(1, 2), edge(2, 3), edge(4, 5)];
        assert_eq!(reachable(&edges, [3].into_iter()), HashSet::from([1, 2, 3]));
    }
}
