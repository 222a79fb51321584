//! Pods that are to be spread evenly over domains of nodes, where that is a wish and not a rule.
//!
//! A node keeps the wish whole where the pod would make its domain no fuller than the emptiest, but for the skew that
//! is allowed; the fuller, the less. What each domain has is counted once for a pod, not once for each node.

use std::collections::BTreeMap;

use crate::cluster::{Neighbours, Wish};
use crate::fit::matches;
use crate::session::Session;

/// How well a pod would be spread on each node, from 0 to 1, for each thing that it would rather have; nothing for
/// those that are not about that.
pub(crate) type Spreads = Vec<Option<Vec<f64>>>;

impl Session<'_> {
    /// How well a pod would be spread.
    pub(crate) fn spreads(&self, task: usize) -> Spreads {
        let spread = |wish: &Wish| match wish {
            Wish::Even { like, skew } => Some(self.spread(task, like, *skew)),
            Wish::Label(_) | Wish::Near(_) => None,
        };
        let prefers = self.tasks[task].task.prefers.iter();
        prefers.map(|one| spread(&one.wish)).collect()
    }

    fn spread(&self, task: usize, like: &Neighbours, skew: u64) -> Vec<f64> {
        let mut on = vec![0; self.nodes.len()];
        for (other, place) in self.present(task) {
            if matches(like, &self.tasks[other].task.labels) {
                on[place] += 1;
            }
        }
        let nodes = self.nodes.iter();
        let domains: Vec<Option<&str>> = nodes
            .map(|node| node.labels.get(&like.domain).map(String::as_str))
            .collect();
        let may_be = (0..on.len()).filter(|&node| self.matches_labels(task, node));
        let may_be = may_be.filter_map(|node| domains[node]);
        let mut counts: BTreeMap<&str, u64> = may_be.map(|domain| (domain, 0)).collect();
        for (domain, count) in domains.iter().zip(on).filter(|(_, count)| *count > 0) {
            if let Some(sum) = domain.and_then(|domain| counts.get_mut(domain)) {
                *sum += count;
            }
        }
        let least = counts.values().copied().min().unwrap_or(0);
        let own = u64::from(matches(like, &self.tasks[task].task.labels));
        let kept = |here: &u64| kept(here + own - least, skew.max(1));
        let here = domains.into_iter().map(|domain| counts.get(domain?));
        here.map(|here| here.map_or(0.0, kept)).collect()
    }
}

/// How well a wish for this skew is kept by that one.
fn kept(skew: u64, wanted: u64) -> f64 {
    match skew <= wanted {
        true => 1.0,
        false => wanted as f64 / skew as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuller_a_domain_the_less_a_pod_is_spread_there() {
        assert_eq!(
            [0, 1, 2, 4].map(|skew| kept(skew, 1)),
            [1.0, 1.0, 0.5, 0.25]
        );
        assert_eq!([2, 4].map(|skew| kept(skew, 2)), [1.0, 0.5]);
    }
}
