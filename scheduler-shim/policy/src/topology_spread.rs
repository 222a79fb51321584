//! Topology spread: pods that must, or prefer to, be spread evenly over domains.
//!
//! As in Kubernetes' filter `PodTopologySpread`, a domain is counted if the pod may run on one of its nodes, and
//! only matching pods on such nodes count. A domain may have as many more than the emptiest as the skew says. A
//! preference is fully met up to there; the fuller the domain, the less. Domains are counted once for a pod, not
//! once for each node, and again after a pod came or went.

use std::rc::Rc;

use crate::affinity_filter::is_found;
use crate::cluster::{PreferredTerm, SpreadConstraint};
use crate::fit::{matches_labels, stays};
use crate::session::Session;
use crate::session::caches::{DomainCounts, TopologySpread};

impl DomainCounts {
    /// How many a domain would have with the pod.
    pub(crate) fn with(&self, domain: usize) -> u64 {
        self.own + self.counts[domain].unwrap_or(0)
    }

    /// Whether the constraint would hold.
    pub(crate) fn has_room(&self, domain: usize) -> bool {
        self.counts[domain].is_some() && self.with(domain) <= self.least.saturating_add(self.skew)
    }

    /// How well a preference would be met, from 0 to 1.
    fn kept(&self, domain: usize) -> f64 {
        match self.counts[domain] {
            Some(_) => kept(self.with(domain).saturating_sub(self.least), self.skew),
            None => 0.0,
        }
    }
}

/// The pods in the domains over which a task is spread; `None` if it has no such rule.
pub(crate) fn evenness(session: &Session<'_>, task: usize) -> Option<Rc<TopologySpread>> {
    let facts = session.tasks[task].task;
    let minds = |wish: &PreferredTerm| matches!(wish, PreferredTerm::Even(_));
    if facts.even.is_empty() && !facts.prefers.iter().any(|one| minds(&one.wish)) {
        return None;
    }
    let mut known = session.inter_pod_affinity.evenness.borrow_mut();
    let moves = session.inter_pod_affinity.moves;
    if let Some(known) = known
        .as_ref()
        .filter(|one| (one.task, one.moves) == (task, moves))
    {
        return Some(Rc::clone(known));
    }
    let part = session.inter_pod_affinity.part(task)?;
    let may_be: Vec<usize> = (0..session.nodes.len())
        .filter(|&node| matches_labels(session, task, node))
        .collect();
    let with_all = |node: &usize| {
        let mut searches = part.even.iter();
        searches.all(|&search| session.inter_pod_affinity.search(search).domains[*node].is_some())
    };
    let in_all: Vec<usize> = may_be.iter().copied().filter(with_all).collect();
    let must = facts.even.iter().zip(&part.even);
    let would = facts.prefers.iter().zip(&part.prefers);
    let evenness = Rc::new(TopologySpread {
        task,
        moves,
        must: must
            .map(|(rule, &search)| levels(session, task, rule, search, &in_all))
            .collect(),
        would: would
            .map(|(one, search)| match (&one.wish, search) {
                (PreferredTerm::Even(rule), Some(search)) => {
                    Some(levels(session, task, rule, *search, &may_be))
                }
                _ => None,
            })
            .collect(),
    });
    Some(Rc::clone(known.insert(evenness)))
}

fn levels(
    session: &Session<'_>,
    task: usize,
    rule: &SpreadConstraint,
    search: usize,
    may_be: &[usize],
) -> DomainCounts {
    let is_of_kind = is_found(session, task, search);
    let search = session.inter_pod_affinity.search(search);
    let domains = search
        .domains
        .iter()
        .flatten()
        .max()
        .map_or(0, |last| last + 1);
    let mut counts = vec![None; domains];
    let own = stays(session, task).filter(|_| is_of_kind);
    for &node in may_be {
        if let Some(domain) = search.domains[node] {
            let here = search.by_node().get(&node).copied().unwrap_or(0);
            *counts[domain].get_or_insert(0) += here - u64::from(own == Some(node));
        }
    }
    let is_narrow = (counts.iter().flatten().count() as u64) < rule.least_domains;
    let least = counts
        .iter()
        .flatten()
        .copied()
        .min()
        .filter(|_| !is_narrow);
    DomainCounts {
        counts,
        least: least.unwrap_or(0),
        own: u64::from(is_of_kind),
        skew: rule.skew.max(1),
    }
}

/// How well a node meets a task's preference for spreading, from 0 to 1.
pub(crate) fn spread(
    session: &Session<'_>,
    evenness: Option<&TopologySpread>,
    wish: usize,
    node: usize,
) -> f64 {
    let levels = evenness.and_then(|evenness| evenness.would[wish].as_ref());
    let search = evenness.and_then(|one| session.inter_pod_affinity.part(one.task)?.prefers[wish]);
    let domain = search.and_then(|search| session.inter_pod_affinity.search(search).domains[node]);
    levels
        .zip(domain)
        .map_or(0.0, |(levels, domain)| levels.kept(domain))
}

/// How well this skew meets a preference for that one.
fn kept(skew: u64, wanted: u64) -> f64 {
    if skew <= wanted {
        1.0
    } else {
        wanted as f64 / skew as f64
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
