//! The tree of domains of a topology.
//!
//! A node that lacks one of the labels is outside the topology.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::choose::DOMAIN;
use crate::cluster::{ClusterTopology, Node};

/// Nodes with the same labels down to some level.
#[derive(Clone, Debug, Default)]
pub(super) struct TopologyDomain {
    /// The values of the labels, joined.
    pub(super) id: String,
    /// 0 for all nodes, 1 for the widest level.
    pub(super) depth: usize,
    pub(super) nodes: BTreeSet<usize>,
    children: Vec<usize>,
    parent: usize,
}

/// All domains; the first holds all nodes of the topology.
#[derive(Clone, Debug)]
pub(super) struct DomainTree(Vec<TopologyDomain>);

impl DomainTree {
    pub(super) fn of(topology: &ClusterTopology, nodes: &[&Node]) -> Self {
        let mut domains = Self(vec![TopologyDomain::default()]);
        for (index, node) in nodes.iter().enumerate() {
            let values = topology.levels.iter().map(|label| node.labels.get(label));
            if let Some(values) = values.collect::<Option<Vec<&String>>>() {
                domains.add(index, &values);
            }
        }
        domains
    }

    fn add(&mut self, node: usize, values: &[&String]) {
        let mut at = 0;
        self.0[0].nodes.insert(node);
        for (depth, value) in values.iter().enumerate() {
            let id = if depth == 0 {
                (*value).clone()
            } else {
                format!("{}.{value}", self.0[at].id)
            };
            let children = self.0[at].children.iter().copied();
            let known = children.into_iter().find(|&child| self.0[child].id == id);
            at = known.unwrap_or_else(|| {
                let index = self.0.len();
                self.0.push(TopologyDomain {
                    id,
                    depth: depth + 1,
                    parent: at,
                    ..TopologyDomain::default()
                });
                self.0[at].children.push(index);
                index
            });
            self.0[at].nodes.insert(node);
        }
    }

    pub(super) fn root(&self) -> &TopologyDomain {
        &self.0[0]
    }

    pub(super) fn get(&self, domain: usize) -> &TopologyDomain {
        &self.0[domain]
    }

    /// The narrowest domain that holds all of `nodes`, no deeper than `floor`.
    pub(super) fn common(&self, nodes: &BTreeSet<usize>, floor: usize) -> usize {
        let mut at = 0;
        loop {
            let here = &self.0[at];
            let mut children = here.children.iter().copied();
            let holding = children.find(|&child| nodes.is_subset(&self.0[child].nodes));
            match holding {
                Some(child) if !nodes.is_empty() && here.depth < floor => {
                    at = child;
                }
                _ => return at,
            }
        }
    }

    /// The domain at `depth` above a domain, or itself.
    pub(super) fn ancestor(&self, domain: &TopologyDomain, depth: usize) -> &TopologyDomain {
        let mut at = domain.clone();
        while at.depth > depth {
            at = self.0[at.parent].clone();
        }
        let found = self
            .0
            .iter()
            .find(|known| known.depth == at.depth && known.id == at.id);
        found.unwrap_or(self.root())
    }

    /// Sorts the domains below one, down to `depth`, the fullest first.
    pub(super) fn sort_below(
        &mut self,
        domain: usize,
        depth: usize,
        fullness: &impl Fn(&TopologyDomain) -> f64,
    ) {
        let children = self.0[domain].children.clone();
        let mut keyed: Vec<(f64, String, usize)> = children
            .iter()
            .map(|&child| {
                let child_domain = &self.0[child];
                (fullness(child_domain), child_domain.id.clone(), child)
            })
            .collect();
        keyed.sort_by(|left, right| by_fullness((left.0, &left.1), (right.0, &right.1)));
        let sorted: Vec<usize> = keyed.into_iter().map(|(_, _, child)| child).collect();
        self.0[domain].children.clone_from(&sorted);
        if self.0[domain].depth == depth {
            return;
        }
        for child in sorted {
            self.sort_below(child, depth, fullness);
        }
    }

    /// How nodes rank by the order of their domains at `depth` below `domain`.
    pub(super) fn scores(&self, domain: usize, depth: usize) -> BTreeMap<usize, f64> {
        let domains = self.at_depth(domain, depth);
        let count = domains.len() as f64;
        let mut scores = BTreeMap::new();
        for (index, domain) in domains.into_iter().enumerate() {
            let step = ((index + 1) as f64 / count * 10.0).floor();
            for &node in &self.0[domain].nodes {
                scores.insert(node, step * DOMAIN);
            }
        }
        scores
    }

    fn at_depth(&self, domain: usize, depth: usize) -> Vec<usize> {
        if self.0[domain].depth == depth {
            return vec![domain];
        }
        let children = self.0[domain].children.iter();
        children
            .flat_map(|&child| self.at_depth(child, depth))
            .collect()
    }

    /// A domain and all below it: narrow before wide, and within a level in order.
    pub(super) fn deepest_first(&self, domain: usize) -> Vec<&TopologyDomain> {
        let mut levels = vec![vec![domain]];
        while let Some(level) = levels.last().filter(|level| !level.is_empty()) {
            let below = level
                .iter()
                .flat_map(|&at| self.0[at].children.clone())
                .collect();
            levels.push(below);
        }
        let order = levels.into_iter().rev().flatten();
        order.map(|at| &self.0[at]).collect()
    }
}

/// The fullest first, then by name.
fn by_fullness(left: (f64, &str), right: (f64, &str)) -> Ordering {
    right.0.total_cmp(&left.0).then_with(|| left.1.cmp(right.1))
}
