//! Stream work that is done at once, or becomes a graph node while the stream is captured: copies, fills and host
//! functions. Each is kept as the driver's parameter structure for its node type, so that a program can read and change
//! it.

use crate::capture::captured;
use crate::copy_rows::{self, Wide3D};
use crate::error::Outcome;
use crate::fill::MemsetNodeParams;
use crate::graphs::{self, GraphNode};
use crate::stream::{HostNodeParams, stream};

/// What a stream does now, or a node does at each launch of its graph.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StreamWork {
    Copy(Wide3D),
    Fill(MemsetNodeParams),
    Host(HostNodeParams),
}

impl StreamWork {
    /// `CUgraphNodeType`.
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Self::Copy(_) => 1,
            Self::Fill(_) => 2,
            Self::Host(_) => 3,
        }
    }

    pub(crate) fn run(&self) -> Outcome {
        match self {
            Self::Copy(copy) => copy_rows::perform(copy),
            Self::Fill(fill) => fill.perform(),
            Self::Host(call) => call.perform(),
        }
    }
}

/// Does work on a stream, or adds it to the graph that the stream is captured into.
pub(crate) fn on_stream(on: u64, work: StreamWork) -> Outcome {
    stream(on)?;
    match captured(on)? {
        Some(to) => graphs::add(to, GraphNode::Work(work)).map(drop),
        None => work.run(),
    }
}
