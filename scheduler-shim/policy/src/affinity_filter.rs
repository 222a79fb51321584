//! Whether a task may be on a node, given the pods around it.
//!
//! Kubernetes' rules for required pod affinity and topology spread constraints. Pods that are about to leave don't
//! count any more, but a pod with anti-affinity to them waits until they are gone. Where pods are only moved, to
//! make room for others, a pod with affinity to its own kind stays in its domain: moving it elsewhere would start a
//! new group, not make room.

use crate::cluster::KaiBehavior;
use crate::inter_pod_affinity::TaskAffinity;
use crate::session::Session;
use crate::task_state::Presence;
use crate::topology_spread::topology_spread;

/// Why the pods around a node keep a pod off it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AffinityRefusal {
    /// Affinity: the domain has no pod that it must be near. Without a value, the node is in no such domain.
    AffinityNotSatisfied {
        /// The node label that defines domains.
        domain: String,
        /// The node's value of that label.
        value: Option<String>,
    },
    /// Anti-affinity: the domain has a pod that it must be apart from.
    AntiAffinityViolated {
        /// The node label that defines domains.
        domain: String,
        /// The node's value of that label.
        value: String,
    },
    /// Anti-affinity of others: the domain has a pod that must be apart from it.
    ExistingAntiAffinity {
        /// The node label that defines domains.
        domain: String,
        /// The node's value of that label.
        value: String,
    },
    /// Topology spread: the domain would have too many pods. Without a value, the node is in no such domain.
    TopologySkewExceeded {
        /// The node label that defines domains.
        domain: String,
        /// The node's value of that label.
        value: Option<String>,
        /// How many matching pods the domain would have.
        here: u64,
        /// How many the emptiest domain has.
        least: u64,
        /// How many more than that a domain may have (`maxSkew`).
        skew: u64,
    },
}

/// The violated term, by its index in the pod's list of terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ViolatedTerm {
    AffinityNotSatisfied(usize),
    AntiAffinityViolated(usize),
    /// By the number of the term.
    ExistingAntiAffinity(usize),
    TopologySkewExceeded(usize),
}

/// Why the pods around that node keep the pod off it, if they do.
pub(crate) fn affinity_refusal(
    session: &Session<'_>,
    task: usize,
    node: usize,
) -> Option<AffinityRefusal> {
    let facts = session.facts();
    let asked = facts.task(task).task;
    let label = |domain: &str| facts.node(node).labels.get(domain).cloned();
    Some(match violated_term(session, task, node)? {
        ViolatedTerm::AffinityNotSatisfied(index) => {
            let domain = asked.near[index].domain.clone();
            AffinityRefusal::AffinityNotSatisfied {
                value: label(&domain),
                domain,
            }
        }
        ViolatedTerm::AntiAffinityViolated(index) => {
            let domain = asked.apart[index].domain.clone();
            AffinityRefusal::AntiAffinityViolated {
                value: label(&domain).unwrap_or_default(),
                domain,
            }
        }
        ViolatedTerm::ExistingAntiAffinity(term) => {
            let domain = facts.affinity_terms().term(term).label.clone();
            AffinityRefusal::ExistingAntiAffinity {
                value: label(&domain).unwrap_or_default(),
                domain,
            }
        }
        ViolatedTerm::TopologySkewExceeded(index) => {
            let domain = asked.even[index].like.domain.clone();
            let spread = topology_spread(session, task)?;
            let counts = &spread.required[index];
            let terms = facts.affinity_terms();
            let here = terms.term(terms.of_task(task)?.even[index]).domain(node);
            AffinityRefusal::TopologySkewExceeded {
                value: label(&domain),
                domain,
                here: here.map_or(0, |domain| counts.with(domain)),
                least: counts.least,
                skew: counts.skew,
            }
        }
    })
}

/// Whether affinity, anti-affinity and topology spread allow the task on the node.
pub(crate) fn matches_neighbours(session: &Session<'_>, task: usize, node: usize) -> bool {
    violated_term(session, task, node).is_none()
}

/// Whether the task must wait for pods to leave because of anti-affinity, its own or theirs.
pub(crate) fn waits_for_affinity(session: &Session<'_>, task: usize, node: usize) -> bool {
    let terms = session.facts().affinity_terms();
    let Some(own_terms) = terms.of_task(task) else {
        return false;
    };
    let mut apart = own_terms.apart.iter();
    apart.any(|&term| others(session, task, term, node, Presence::Leaves) > 0)
        || terms
            .refusing(own_terms)
            .any(|term| averse_others(session, task, term, node, Presence::Leaves) > 0)
}

/// The first term that keeps the task off the node, the cheapest checks first.
fn violated_term(session: &Session<'_>, task: usize, node: usize) -> Option<ViolatedTerm> {
    let terms = session.facts().affinity_terms();
    let own_terms = terms.of_task(task)?;
    let mut near = own_terms.near.iter();
    if let Some(index) = near.position(|&term| lacks_matching_pod(session, task, term, node)) {
        return Some(ViolatedTerm::AffinityNotSatisfied(index));
    }
    let mut apart = own_terms.apart.iter();
    if let Some(index) = apart.position(|&term| matching_pods(session, task, term, node) > 0) {
        return Some(ViolatedTerm::AntiAffinityViolated(index));
    }
    let mut refusing = terms.refusing(own_terms);
    if let Some(term) =
        refusing.find(|&term| violates_existing_anti_affinity(session, task, term, node))
    {
        return Some(ViolatedTerm::ExistingAntiAffinity(term));
    }
    let index = exceeded_skew(session, task, own_terms, node)?;
    Some(ViolatedTerm::TopologySkewExceeded(index))
}

/// Whether an affinity term of the task is not met on the node.
fn lacks_matching_pod(session: &Session<'_>, task: usize, term: usize, node: usize) -> bool {
    let domain = session.facts().affinity_terms().term(term).domain(node);
    matching_pods(session, task, term, node) == 0
        && !(domain.is_some() && is_first(session, task, term))
        && !moves_in_domain(session, task, term, node)
}

/// Whether a pod in the node's domain has anti-affinity to the task, by a term that matches it.
fn violates_existing_anti_affinity(
    session: &Session<'_>,
    task: usize,
    term: usize,
    node: usize,
) -> bool {
    let leaving = if counts_leaving(session) {
        let domain = session.facts().affinity_terms().term(term).domain(node);
        let counts = session.state().affinity_counts().term(term);
        counts.averse(domain, Presence::Leaves)
    } else {
        0
    };
    leaving + averse_others(session, task, term, node, Presence::Stays) > 0
}

/// Whether the task matches its own affinity term and no other pod does. Then it may be the first.
fn is_first(session: &Session<'_>, task: usize, term: usize) -> bool {
    if !session.facts().affinity_terms().matches(term, task) {
        return false;
    }
    let own = u64::from(session.state().task(task).stays_on().is_some());
    let counts = session.state().affinity_counts().term(term);
    let leaving = if counts_leaving(session) || session.plan().is_moves_only() {
        counts.leaving()
    } else {
        0
    };
    counts.anywhere() + leaving == own
}

/// Whether the task matches its own affinity term and only moves within the node's domain.
fn moves_in_domain(session: &Session<'_>, task: usize, term: usize, node: usize) -> bool {
    session.plan().is_moves_only()
        && session.facts().affinity_terms().matches(term, task)
        && own(session, task, term, node, Presence::Leaves) > 0
}

/// How many pods in the node's domain satisfy an affinity term of the task.
fn matching_pods(session: &Session<'_>, task: usize, term: usize, node: usize) -> u64 {
    let leaving = if counts_leaving(session) {
        let domain = session.facts().affinity_terms().term(term).domain(node);
        let counts = session.state().affinity_counts().term(term);
        counts.found(domain, Presence::Leaves)
    } else {
        0
    };
    leaving + others(session, task, term, node, Presence::Stays)
}

/// Whether pods that are about to leave still count, as in KAI: even for themselves when they are placed again.
fn counts_leaving(session: &Session<'_>) -> bool {
    session.facts().settings().goes(KaiBehavior::CountsLeaving)
}

/// The first topology spread constraint that the task would violate.
fn exceeded_skew(
    session: &Session<'_>,
    task: usize,
    own_terms: &TaskAffinity,
    node: usize,
) -> Option<usize> {
    if own_terms.even.is_empty() {
        return None;
    }
    let spread = topology_spread(session, task)?;
    let terms = session.facts().affinity_terms();
    let mut rules = own_terms.even.iter().zip(&spread.required);
    rules.position(|(&term, counts)| {
        let domain = terms.term(term).domain(node);
        !domain.is_some_and(|domain| counts.fits_when_freed(domain))
    })
}

/// How many other pods in the node's domain match a term.
pub(crate) fn others(
    session: &Session<'_>,
    task: usize,
    term: usize,
    node: usize,
    presence: Presence,
) -> u64 {
    let domain = session.facts().affinity_terms().term(term).domain(node);
    let counts = session.state().affinity_counts().term(term);
    let all = counts.found(domain, presence);
    if session.facts().affinity_terms().matches(term, task) {
        all - own(session, task, term, node, presence)
    } else {
        all
    }
}

/// How many other pods in the node's domain have anti-affinity to what a term matches.
fn averse_others(
    session: &Session<'_>,
    task: usize,
    term: usize,
    node: usize,
    presence: Presence,
) -> u64 {
    let terms = session.facts().affinity_terms();
    let counts = session.state().affinity_counts().term(term);
    let all = counts.averse(terms.term(term).domain(node), presence);
    let own_terms = terms.of_task(task);
    if own_terms.is_some_and(|own_terms| own_terms.apart.contains(&term)) {
        all - own(session, task, term, node, presence)
    } else {
        all
    }
}

/// How often the task itself is in the node's domain.
fn own(session: &Session<'_>, task: usize, term: usize, node: usize, presence: Presence) -> u64 {
    let terms = session.facts().affinity_terms();
    terms.count(term, session.state().task(task), node, presence)
}

#[cfg(test)]
mod tests;
