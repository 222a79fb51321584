//! Work of a stream that is done at once, or becomes a node of a graph while the stream is captured.

use std::fmt;
use std::sync::Arc;

use crate::capture::captured;
use crate::error::Outcome;
use crate::graphs::{self, Node};
use crate::stream::stream;

/// `CU_GRAPH_NODE_TYPE_MEMCPY` and `CU_GRAPH_NODE_TYPE_MEMSET`.
pub(crate) const COPY: u32 = 1;
pub(crate) const FILL: u32 = 2;

/// What a node does at each launch of its graph.
#[derive(Clone)]
pub(crate) struct Work {
    /// `CUgraphNodeType`.
    pub(crate) kind: u32,
    run: Arc<dyn Fn() -> Outcome + Send + Sync>,
}

impl Work {
    /// Does it.
    pub(crate) fn run(&self) -> Outcome {
        (self.run)()
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Work").field("kind", &self.kind).finish()
    }
}

/// Does work on a stream, or notes it in the graph that the stream is captured into.
pub(crate) fn on_stream(
    on: u64,
    kind: u32,
    run: impl Fn() -> Outcome + Send + Sync + 'static,
) -> Outcome {
    stream(on)?;
    match captured(on)? {
        Some(graph) => {
            let run = Arc::new(run);
            graphs::add(graph, Node::Work(Work { kind, run })).map(drop)
        }
        None => run(),
    }
}
