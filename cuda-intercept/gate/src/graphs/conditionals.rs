//! Conditional nodes, whose bodies are graphs. The driver returns the bodies when the node is created; older drivers
//! never return them again. So they are remembered until the node, or its graph, is destroyed.

use crate::fallible_map::FallibleMap;

/// Where the driver keeps the bodies of a node, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConditionalBodies {
    /// The address of the first body.
    pub at: u64,
    /// The number of bodies.
    pub count: u32,
}

/// The conditional nodes of a process.
#[derive(Debug, Default)]
pub struct ConditionalNodes(FallibleMap<u64, (u64, ConditionalBodies)>);

impl ConditionalNodes {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().next().is_none()
    }

    /// Records a node of a graph.
    pub fn enter(&mut self, node: u64, graph: u64, bodies: ConditionalBodies) {
        self.0.enter(node, (graph, bodies));
    }

    /// The bodies of a node.
    #[must_use]
    pub fn bodies(&self, node: u64) -> Option<ConditionalBodies> {
        self.0.get(node).map(|(_, bodies)| *bodies)
    }

    /// Removes a node.
    pub fn take(&mut self, node: u64) -> Option<ConditionalBodies> {
        self.0.remove(node).map(|(_, bodies)| bodies)
    }

    /// Removes one node of a graph. Call it until there is none.
    pub fn take_in(&mut self, graph: u64) -> Option<ConditionalBodies> {
        let found = self.0.remove_where(|_, (of, _)| *of == graph);
        found.map(|(_, (_, bodies))| bodies)
    }
}
