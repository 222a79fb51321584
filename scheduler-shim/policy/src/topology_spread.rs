//! Topology spread: pods that must, or prefer to, be spread evenly over domains.
//!
//! As in Kubernetes' filter `PodTopologySpread`, a domain is counted if the pod may run on one of its nodes, and
//! only matching pods on such nodes count. A domain may have as many more than the emptiest as the skew says. A
//! preference is fully met up to there; the fuller the domain, the less. Domains are counted once for a pod, not
//! once for each node, and again after a pod came or went.

use std::rc::Rc;

use crate::caches::topology_spread::{DomainCounts, TopologySpread};
use crate::cluster::{PreferredTerm, SpreadConstraint};
use crate::requests::matches_labels;
use crate::session::Session;

impl DomainCounts {
    /// How many a domain would have with the pod.
    pub(crate) fn with(&self, domain: usize) -> u64 {
        self.own + self.counts[domain].unwrap_or(0)
    }

    /// Whether the constraint would hold.
    pub(crate) fn fits_when_freed(&self, domain: usize) -> bool {
        self.counts[domain].is_some() && self.with(domain) <= self.least.saturating_add(self.skew)
    }

    /// How well a preference would be met, from 0 to 1.
    fn score_factor(&self, domain: usize) -> f64 {
        match self.counts[domain] {
            Some(_) => score_factor(self.with(domain).saturating_sub(self.least), self.skew),
            None => 0.0,
        }
    }
}

/// The pods in the domains over which a task is spread; `None` if it has no such rule.
pub(crate) fn topology_spread(session: &Session<'_>, task: usize) -> Option<Rc<TopologySpread>> {
    let asked = session.facts().task(task).task;
    if asked.even.is_empty()
        && !asked
            .prefers
            .iter()
            .any(|one| matches!(one.term, PreferredTerm::Even(_)))
    {
        return None;
    }
    let changes = session.state().affinity_counts().changes();
    session
        .caches()
        .topology_spread(task, changes, || compute_topology_spread(session, task))
}

/// Counts the pods in the domains over which a task is spread.
pub(crate) fn compute_topology_spread(
    session: &Session<'_>,
    task: usize,
) -> Option<TopologySpread> {
    let facts = session.facts();
    let asked = facts.task(task).task;
    let terms = facts.affinity_terms();
    let part = terms.of_task(task)?;
    let may_be: Vec<usize> = (0..facts.nodes().len())
        .filter(|&node| matches_labels(facts, task, node))
        .collect();
    // A node counts for a required constraint if it is in a domain of all of them.
    let in_all: Vec<usize> = may_be
        .iter()
        .copied()
        .filter(|node| {
            let mut even = part.even.iter();
            even.all(|&term| terms.term(term).domain(*node).is_some())
        })
        .collect();
    let required = asked.even.iter().zip(&part.even);
    let preferred = asked.prefers.iter().zip(&part.prefers);
    Some(TopologySpread {
        task,
        changes: session.state().affinity_counts().changes(),
        required: required
            .map(|(rule, &term)| domain_counts(session, task, rule, term, &in_all))
            .collect(),
        preferred: preferred
            .map(|(one, term)| match (&one.term, term) {
                (PreferredTerm::Even(rule), Some(term)) => {
                    Some(domain_counts(session, task, rule, *term, &may_be))
                }
                _ => None,
            })
            .collect(),
    })
}

fn domain_counts(
    session: &Session<'_>,
    task: usize,
    rule: &SpreadConstraint,
    term: usize,
    may_be: &[usize],
) -> DomainCounts {
    let matches_itself = session.facts().affinity_terms().matches(term, task);
    let domains = session.facts().affinity_terms().term(term);
    let by_node = session.state().affinity_counts().term(term).by_node();
    let own = session
        .state()
        .task(task)
        .stays_on()
        .filter(|_| matches_itself);
    let mut counts = vec![None; domains.domain_count()];
    for &node in may_be {
        if let Some(domain) = domains.domain(node) {
            let here = by_node.get(&node).copied().unwrap_or(0);
            *counts[domain].get_or_insert(0) += here - u64::from(own == Some(node));
        }
    }
    let least = counts.iter().flatten().copied().min();
    // With fewer domains than are asked for, the emptiest counts as empty.
    let is_narrow = (counts.iter().flatten().count() as u64) < rule.least_domains;
    DomainCounts {
        least: least.filter(|_| !is_narrow).unwrap_or(0),
        counts,
        own: u64::from(matches_itself),
        skew: rule.skew.max(1),
    }
}

/// How well a node meets a task's preference for spreading, from 0 to 1.
pub(crate) fn spread_score(
    session: &Session<'_>,
    spread: Option<&TopologySpread>,
    preference: usize,
    node: usize,
) -> f64 {
    spread
        .and_then(|spread| {
            let counts = spread.preferred[preference].as_ref()?;
            let terms = session.facts().affinity_terms();
            let term = terms.of_task(spread.task)?.prefers[preference]?;
            Some(counts.score_factor(terms.term(term).domain(node)?))
        })
        .unwrap_or(0.0)
}

/// How well this skew meets a preference for that one.
fn score_factor(skew: u64, wanted: u64) -> f64 {
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
            [0, 1, 2, 4].map(|skew| score_factor(skew, 1)),
            [1.0, 1.0, 0.5, 0.25]
        );
        assert_eq!([2, 4].map(|skew| score_factor(skew, 2)), [1.0, 0.5]);
    }
}
