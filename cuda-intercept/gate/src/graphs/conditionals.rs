//! Nodes with bodies: graphs that run on a condition. The driver says what the bodies are when such a node is made,
//! and older ones never again; so that is kept until the node, or the graph that it is in, is destroyed.

use crate::fallible_map::FallibleMap;

/// Where the driver keeps the bodies of a node, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConditionalBodies {
    /// The address of the first.
    pub at: u64,
    /// How many.
    pub count: u32,
}

/// The nodes of a process.
#[derive(Debug, Default)]
pub struct ConditionalNodes(FallibleMap<u64, (u64, ConditionalBodies)>);

impl ConditionalNodes {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().next().is_none()
    }

    /// Enters a node of a graph.
    pub fn enter(&mut self, node: u64, graph: u64, bodies: ConditionalBodies) {
        self.0.enter(node, (graph, bodies));
    }

    /// The bodies of a node.
    #[must_use]
    pub fn bodies(&self, node: u64) -> Option<ConditionalBodies> {
        self.0.get(node).map(|(_, bodies)| *bodies)
    }

    /// Takes a node out.
    pub fn take(&mut self, node: u64) -> Option<ConditionalBodies> {
        self.0.remove(node).map(|(_, bodies)| bodies)
    }

    /// Takes out a node of a graph; to be called until there is none.
    pub fn take_in(&mut self, graph: u64) -> Option<ConditionalBodies> {
        let found = self.0.remove_where(|_, (of, _)| *of == graph);
        found.map(|(_, (_, bodies))| bodies)
    }
}
