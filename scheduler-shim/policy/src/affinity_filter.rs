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
        ViolatedTerm::AffinityNotSatisfied(place) => {
            let domain = asked.near[place].domain.clone();
            AffinityRefusal::AffinityNotSatisfied {
                value: label(&domain),
                domain,
            }
        }
        ViolatedTerm::AntiAffinityViolated(place) => {
            let domain = asked.apart[place].domain.clone();
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
        ViolatedTerm::TopologySkewExceeded(place) => {
            let domain = asked.even[place].like.domain.clone();
            let spread = topology_spread(session, task)?;
            let counts = &spread.required[place];
            let terms = facts.affinity_terms();
            let here = terms.term(terms.part(task)?.even[place]).domain(node);
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
    let Some(part) = terms.part(task) else {
        return false;
    };
    let mut apart = part.apart.iter();
    apart.any(|&term| others(session, task, term, node, Presence::Leaves) > 0)
        || terms
            .refusing(part)
            .any(|term| averse_others(session, task, term, node, Presence::Leaves) > 0)
}

/// The first term that keeps the task off the node, the cheapest checks first.
fn violated_term(session: &Session<'_>, task: usize, node: usize) -> Option<ViolatedTerm> {
    let terms = session.facts().affinity_terms();
    let part = terms.part(task)?;
    let mut near = part.near.iter();
    if let Some(place) = near.position(|&term| is_lonely(session, task, term, node)) {
        return Some(ViolatedTerm::AffinityNotSatisfied(place));
    }
    let mut apart = part.apart.iter();
    if let Some(place) = apart.position(|&term| matching_pods(session, task, term, node) > 0) {
        return Some(ViolatedTerm::AntiAffinityViolated(place));
    }
    let mut refusing = terms.refusing(part);
    if let Some(term) =
        refusing.find(|&term| violates_existing_anti_affinity(session, task, term, node))
    {
        return Some(ViolatedTerm::ExistingAntiAffinity(term));
    }
    let place = uneven(session, task, part, node)?;
    Some(ViolatedTerm::TopologySkewExceeded(place))
}

/// Whether an affinity term of the task is not met on the node.
fn is_lonely(session: &Session<'_>, task: usize, term: usize, node: usize) -> bool {
    let domain = session.facts().affinity_terms().term(term).domain(node);
    matching_pods(session, task, term, node) == 0
        && !(domain.is_some() && is_first(session, task, term))
        && !moves_within(session, task, term, node)
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
    let leaving = if counts_leaving(session) || session.plan().only_moves() {
        counts.leaving()
    } else {
        0
    };
    counts.anywhere() + leaving == own
}

/// Whether the task matches its own affinity term and only moves within the node's domain.
fn moves_within(session: &Session<'_>, task: usize, term: usize, node: usize) -> bool {
    session.plan().only_moves()
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
fn uneven(session: &Session<'_>, task: usize, part: &TaskAffinity, node: usize) -> Option<usize> {
    if part.even.is_empty() {
        return None;
    }
    let spread = topology_spread(session, task)?;
    let terms = session.facts().affinity_terms();
    let mut rules = part.even.iter().zip(&spread.required);
    rules.position(|(&term, counts)| {
        let domain = terms.term(term).domain(node);
        !domain.is_some_and(|domain| counts.has_room(domain))
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
    let part = terms.part(task);
    if part.is_some_and(|part| part.apart.contains(&term)) {
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
