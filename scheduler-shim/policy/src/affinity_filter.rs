//! Whether a task may be on a node, given the pods around it.
//!
//! Kubernetes' rules for required pod affinity and topology spread constraints. Pods that are about to leave don't
//! count any more, but a pod with anti-affinity to them waits until they are gone. Where pods are only moved, to
//! make room for others, a pod with affinity to its own kind stays in its domain: moving it elsewhere would start a
//! new group, not make room.

use crate::cluster::KaiBehavior;
use crate::fit::stays;
use crate::inter_pod_affinity::{Presence, TaskAffinity};
use crate::session::Session;
use crate::topology_spread::evenness;

/// Why the pods around a node keep a pod off it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AffinityRefusal {
    /// Affinity: the domain has no pod that it must be near. Without a value, the node is in no such domain.
    Lonely {
        /// The node label that defines domains.
        domain: String,
        /// The node's value of that label.
        value: Option<String>,
    },
    /// Anti-affinity: the domain has a pod that it must be apart from.
    Crowded {
        /// The node label that defines domains.
        domain: String,
        /// The node's value of that label.
        value: String,
    },
    /// Anti-affinity of others: the domain has a pod that must be apart from it.
    Unwelcome {
        /// The node label that defines domains.
        domain: String,
        /// The node's value of that label.
        value: String,
    },
    /// Topology spread: the domain would have too many pods. Without a value, the node is in no such domain.
    Uneven {
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
    Lonely(usize),
    Crowded(usize),
    /// By the number of the search.
    Unwelcome(usize),
    Uneven(usize),
}

/// Why the pods around that node keep the pod off it, if they do.
pub(crate) fn affinity_refusal(
    session: &Session<'_>,
    task: usize,
    node: usize,
) -> Option<AffinityRefusal> {
    let facts = session.tasks[task].task;
    let refused = violated_term(session, task, node)?;
    let label = |domain: &str| session.nodes[node].labels.get(domain).cloned();
    Some(match refused {
        ViolatedTerm::Lonely(place) => {
            let domain = facts.near[place].domain.clone();
            AffinityRefusal::Lonely {
                value: label(&domain),
                domain,
            }
        }
        ViolatedTerm::Crowded(place) => {
            let domain = facts.apart[place].domain.clone();
            AffinityRefusal::Crowded {
                value: label(&domain).unwrap_or_default(),
                domain,
            }
        }
        ViolatedTerm::Unwelcome(search) => {
            let domain = session.inter_pod_affinity.search(search).label.clone();
            AffinityRefusal::Unwelcome {
                value: label(&domain).unwrap_or_default(),
                domain,
            }
        }
        ViolatedTerm::Uneven(place) => {
            let domain = facts.even[place].like.domain.clone();
            let evenness = evenness(session, task)?;
            let levels = &evenness.must[place];
            let search = session.inter_pod_affinity.part(task)?.even[place];
            let here = session.inter_pod_affinity.search(search).domains[node];
            AffinityRefusal::Uneven {
                value: label(&domain),
                domain,
                here: here.map_or(0, |domain| levels.with(domain)),
                least: levels.least,
                skew: levels.skew,
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
    let Some(part) = session.inter_pod_affinity.part(task) else {
        return false;
    };
    let leaves = |search: &usize| others(session, task, *search, node, Presence::Leaves) > 0;
    let mut refusing = session.inter_pod_affinity.refusing(part);
    part.apart.iter().any(leaves)
        || refusing
            .any(|search| anti_affinity_count(session, task, search, node, Presence::Leaves) > 0)
}

fn violated_term(session: &Session<'_>, task: usize, node: usize) -> Option<ViolatedTerm> {
    let part = session.inter_pod_affinity.part(task)?;
    let lonely = part.near.iter().position(|&search| {
        let others = matching_pods(session, task, search, node);
        let is_somewhere = session.inter_pod_affinity.search(search).domains[node].is_some();
        let may_begin = is_somewhere && is_first(session, task, search);
        others == 0 && !may_begin && !moves_within(session, task, search, node)
    });
    let stay = |search: &usize| matching_pods(session, task, *search, node) > 0;
    let crowded = || part.apart.iter().position(stay);
    let unwelcome = || {
        let mut refusing = session.inter_pod_affinity.refusing(part);
        refusing.find(|&search| {
            let leaving = if counts_leaving(session) {
                session
                    .inter_pod_affinity
                    .search(search)
                    .anti_affinity_count(node, Presence::Leaves)
            } else {
                0
            };
            leaving + anti_affinity_count(session, task, search, node, Presence::Stays) > 0
        })
    };
    let uneven = || uneven(session, task, part, node);
    lonely
        .map(ViolatedTerm::Lonely)
        .or_else(|| crowded().map(ViolatedTerm::Crowded))
        .or_else(|| unwelcome().map(ViolatedTerm::Unwelcome))
        .or_else(|| uneven().map(ViolatedTerm::Uneven))
}

/// Whether the task matches its own affinity term and no other pod does. Then it may be the first.
fn is_first(session: &Session<'_>, task: usize, search: usize) -> bool {
    let own = u64::from(stays(session, task).is_some());
    let search_for = session.inter_pod_affinity.search(search);
    let leaving = if counts_leaving(session) || session.inter_pod_affinity.only_moves {
        search_for.leaving()
    } else {
        0
    };
    is_found(session, task, search) && search_for.anywhere() + leaving == own
}

/// Whether the task matches its own affinity term and only moves within the node's domain.
fn moves_within(session: &Session<'_>, task: usize, search: usize, node: usize) -> bool {
    session.inter_pod_affinity.only_moves
        && is_found(session, task, search)
        && own(session, task, search, node, Presence::Leaves) > 0
}

/// How many pods in the node's domain satisfy an affinity term of the task.
fn matching_pods(session: &Session<'_>, task: usize, search: usize, node: usize) -> u64 {
    let leaving = if counts_leaving(session) {
        session
            .inter_pod_affinity
            .search(search)
            .found(node, Presence::Leaves)
    } else {
        0
    };
    leaving + others(session, task, search, node, Presence::Stays)
}

/// Whether pods that are about to leave still count, as in KAI: even for themselves when they are placed again.
fn counts_leaving(session: &Session<'_>) -> bool {
    session.settings.goes(KaiBehavior::CountsLeaving)
}

/// The first topology spread constraint that the task would violate.
fn uneven(session: &Session<'_>, task: usize, part: &TaskAffinity, node: usize) -> Option<usize> {
    let evenness = evenness(session, task).filter(|_| !part.even.is_empty())?;
    let mut rules = part.even.iter().zip(&evenness.must);
    rules.position(|(&search, levels)| {
        let domain = session.inter_pod_affinity.search(search).domains[node];
        !domain.is_some_and(|domain| levels.has_room(domain))
    })
}

/// How many other pods in the node's domain match a search.
pub(crate) fn others(
    session: &Session<'_>,
    task: usize,
    search: usize,
    node: usize,
    presence: Presence,
) -> u64 {
    let all = session
        .inter_pod_affinity
        .search(search)
        .found(node, presence);
    if is_found(session, task, search) {
        all - own(session, task, search, node, presence)
    } else {
        all
    }
}

/// How many other pods in the node's domain have anti-affinity to what a search matches.
fn anti_affinity_count(
    session: &Session<'_>,
    task: usize,
    search: usize,
    node: usize,
    presence: Presence,
) -> u64 {
    let all = session
        .inter_pod_affinity
        .search(search)
        .anti_affinity_count(node, presence);
    let part = session.inter_pod_affinity.part(task);
    if part.is_some_and(|part| part.apart.contains(&search)) {
        all - own(session, task, search, node, presence)
    } else {
        all
    }
}

/// How often the task itself is in the node's domain.
fn own(session: &Session<'_>, task: usize, search: usize, node: usize, presence: Presence) -> u64 {
    let search = session.inter_pod_affinity.search(search);
    search.count(&session.task_states[task], node, presence)
}

/// Whether a search matches the task.
pub(crate) fn is_found(session: &Session<'_>, task: usize, search: usize) -> bool {
    let part = session.inter_pod_affinity.part(task);
    part.is_some_and(|part| part.found_by.contains(&search))
}

#[cfg(test)]
mod tests;
