//! Which nodes changed, for caches that keep something about every node.
//!
//! A search looks at few nodes, and there may be thousands. Caches keep what they know and look again only at nodes
//! that changed. Each reader remembers how far it has read. Once the list is longer than a look at everything would
//! take, it starts again, and readers do look at everything.

/// The changed nodes, oldest change first.
#[derive(Clone, Debug)]
pub(crate) struct ChangedNodes {
    /// The number of the current list.
    lists: u64,
    nodes: Vec<usize>,
    longest: usize,
}

/// How far a reader has read; at first nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangeCursor {
    lists: u64,
    nodes: usize,
}

impl ChangedNodes {
    /// An empty list for this many nodes.
    pub(crate) fn none_of(nodes: usize) -> Self {
        Self {
            lists: 1,
            nodes: Vec::new(),
            longest: nodes.max(1) * 4,
        }
    }

    /// Records that a node changed.
    pub(crate) fn record(&mut self, node: usize) {
        if self.nodes.len() == self.longest {
            self.lists += 1;
            self.nodes.clear();
        }
        self.nodes.push(node);
    }

    /// The nodes that changed since `cursor`, which moves to now. `None` if that is no longer known, or nothing was
    /// read before.
    pub(crate) fn since(&self, cursor: &mut ChangeCursor) -> Option<&[usize]> {
        let before = std::mem::replace(
            cursor,
            ChangeCursor {
                lists: self.lists,
                nodes: self.nodes.len(),
            },
        );
        (before.lists == self.lists).then(|| &self.nodes[before.nodes..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_gets_what_is_new_to_it_or_looks_at_everything() {
        let mut touched = ChangedNodes::none_of(1);
        let mut cursor = ChangeCursor::default();
        assert_eq!(touched.since(&mut cursor), None);
        assert_eq!(touched.since(&mut cursor), Some(&[][..]));
        touched.record(7);
        touched.record(8);
        assert_eq!(touched.since(&mut cursor), Some(&[7, 8][..]));
        (0..3).for_each(|node| touched.record(node));
        assert_eq!(touched.since(&mut cursor), None);
        assert_eq!(touched.since(&mut cursor), Some(&[][..]));
    }
}
