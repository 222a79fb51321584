//! `cuGraphDebugDotPrint`: a graph in Graphviz's DOT language.

use std::fmt::Write as _;

use crate::captured_work::StreamWork;
use crate::driver::tables;
use crate::error::{CudaError, INVALID_VALUE, OPERATING_SYSTEM, Outcome};
use crate::export::exports;
use crate::graphs::{self, GraphNode};
use crate::pointer::Text;
use crate::tables::number_of;

/// All of `CUgraphDebugDot_flags`. They ask for more detail than this file writes.
const FLAGS: u32 = 0x3ffff;

exports! {
    cuGraphDebugDotPrint(graph: u64, path: Text, flags: u32) = print => "cuGraphDebugDotPrint" @ 11030;
}

fn label(node: &GraphNode) -> String {
    match node {
        GraphNode::Kernel(kernel) => format!("KERNEL\\n{}", kernel.name()),
        GraphNode::Work(StreamWork::Copy(_)) => "MEMCPY".to_owned(),
        GraphNode::Work(StreamWork::Fill(_)) => "MEMSET".to_owned(),
        GraphNode::Work(StreamWork::Host(_)) => "HOST".to_owned(),
        GraphNode::Child(_) => "CHILD GRAPH".to_owned(),
        GraphNode::Nothing => "EMPTY".to_owned(),
        GraphNode::Wait(_) => "EVENT WAIT".to_owned(),
        GraphNode::Record(_) => "EVENT RECORD".to_owned(),
        GraphNode::Allocate(_) => "MEM ALLOC".to_owned(),
        GraphNode::Free(_) => "MEM FREE".to_owned(),
        GraphNode::Operations(_) => "BATCH MEM OP".to_owned(),
        GraphNode::Conditional(_) => "CONDITIONAL".to_owned(),
    }
}

/// Describes a graph, followed by its child graphs.
fn describe(graph: u64, text: &mut String) -> Result<(), CudaError> {
    let name = number_of(graph);
    let _ = writeln!(text, "subgraph cluster_{name} {{\nlabel=\"graph_{name}\"");
    let mut inside = Vec::new();
    for handle in graphs::nodes_of(graph)? {
        let node = graphs::node(handle)?;
        let (at, what) = (number_of(handle), label(&node));
        let _ = writeln!(text, "\"graph_{name}_node_{at}\"[label=\"{at}\\n{what}\"]");
        match node {
            GraphNode::Child(child) => inside.push(child),
            GraphNode::Conditional(bodies) => inside.extend(bodies.iter()),
            _ => {}
        }
    }
    let edges = tables().graphs.edges_mut(graph)?.clone();
    for edge in edges {
        let (from, to) = (number_of(edge.from), number_of(edge.to));
        let _ = writeln!(
            text,
            "\"graph_{name}_node_{from}\" -> \"graph_{name}_node_{to}\""
        );
    }
    text.push_str("}\n");
    inside
        .into_iter()
        .try_for_each(|graph| describe(graph, text))
}

fn print(graph: u64, path: Text, flags: u32) -> Outcome {
    let path = path.get()?;
    if flags & !FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let mut text = "digraph dot {\n".to_owned();
    describe(graph, &mut text)?;
    text.push_str("}\n");
    std::fs::write(path, text).map_err(|_| OPERATING_SYSTEM)
}
