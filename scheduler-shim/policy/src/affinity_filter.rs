//! Whether a task may be where others are, or are not.
//!
//! Kubernetes' rules of required affinities and spread constraints. Pods that are about to leave are no company any
//! more, but a pod that wants to be apart from them waits until they have gone. Where pods only move, to make room for
//! others, a pod that has to be near its own kind stays in its domain: to move it would make company, not room.

use crate::cluster::KaiBehavior;
use crate::inter_pod_affinity::{Presence, TaskAffinity};
use crate::session::Session;

/// Why a pod may not be on a node because of the pods around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AffinityRefusal {
    /// No pod that it must be near is in that domain; without a value the node is in no such domain.
    Lonely {
        /// The node's label.
        domain: String,
        /// Its value.
        value: Option<String>,
    },
    /// Pods from which it must be apart are there.
    Crowded {
        /// The node's label.
        domain: String,
        /// Its value.
        value: String,
    },
    /// A pod that must be apart from it is there.
    Unwelcome {
        /// The node's label.
        domain: String,
        /// Its value.
        value: String,
    },
    /// The domain would have too many pods of a kind; without a value the node is in no such domain.
    Uneven {
        /// The node's label.
        domain: String,
        /// Its value.
        value: Option<String>,
        /// How many there would be.
        here: u64,
        /// How many the emptiest domain has.
        least: u64,
        /// How many more there may be.
        skew: u64,
    },
}

/// The same, by the place of the wish in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ViolatedTerm {
    Lonely(usize),
    Crowded(usize),
    /// By number of the search.
    Unwelcome(usize),
    Uneven(usize),
}

impl Session<'_> {
    /// Why the pod may not be on that node because of the pods around it, if so.
    #[must_use]
    pub fn company_refusal(&self, task: &str, node: &str) -> Option<AffinityRefusal> {
        let (task, node) = self.named(task, node)?;
        let facts = self.tasks[task].task;
        let refused = self.refused_company(task, node)?;
        let label = |domain: &str| self.nodes[node].labels.get(domain).cloned();
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
                let domain = self.company.search(search).label.clone();
                AffinityRefusal::Unwelcome {
                    value: label(&domain).unwrap_or_default(),
                    domain,
                }
            }
            ViolatedTerm::Uneven(place) => {
                let domain = facts.even[place].like.domain.clone();
                let evenness = self.evenness(task)?;
                let levels = &evenness.must[place];
                let search = self.company.part(task)?.even[place];
                let here = self.company.search(search).domains[node];
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

    /// Whether a task may be on a node, as far as the pods around it matter.
    pub(crate) fn matches_neighbours(&self, task: usize, node: usize) -> bool {
        self.refused_company(task, node).is_none()
    }

    /// Whether pods from which the task is to be apart have yet to leave.
    pub(crate) fn waits_for_company(&self, task: usize, node: usize) -> bool {
        let Some(part) = self.company.part(task) else {
            return false;
        };
        let leaves = |search: &usize| self.others(task, *search, node, Presence::Leaves) > 0;
        let mut dreading = self.company.dreading(part);
        part.apart.iter().any(leaves)
            || dreading.any(|search| self.averse(task, search, node, Presence::Leaves) > 0)
    }

    fn refused_company(&self, task: usize, node: usize) -> Option<ViolatedTerm> {
        let part = self.company.part(task)?;
        let lonely = part.near.iter().position(|&search| {
            let others = self.company_of(task, search, node);
            let is_somewhere = self.company.search(search).domains[node].is_some();
            let may_begin = is_somewhere && self.is_first(task, search);
            others == 0 && !may_begin && !self.moves_within(task, search, node)
        });
        let stay = |search: &usize| self.company_of(task, *search, node) > 0;
        let crowded = || part.apart.iter().position(stay);
        let unwelcome = || {
            let mut dreading = self.company.dreading(part);
            dreading.find(|&search| {
                let leaving = match self.counts_leaving() {
                    true => self.company.search(search).averse(node, Presence::Leaves),
                    false => 0,
                };
                leaving + self.averse(task, search, node, Presence::Stays) > 0
            })
        };
        let uneven = || self.uneven(task, part, node);
        lonely
            .map(ViolatedTerm::Lonely)
            .or_else(|| crowded().map(ViolatedTerm::Crowded))
            .or_else(|| unwelcome().map(ViolatedTerm::Unwelcome))
            .or_else(|| uneven().map(ViolatedTerm::Uneven))
    }

    /// Whether the task itself is what it looks for, and there is no other: then it may be the first.
    fn is_first(&self, task: usize, search: usize) -> bool {
        let own = u64::from(self.stays(task).is_some());
        let search_for = self.company.search(search);
        let leaving = match self.counts_leaving() || self.company.only_moves {
            true => search_for.leaving(),
            false => 0,
        };
        self.is_found(task, search) && search_for.anywhere() + leaving == own
    }

    /// Whether the task is what it looks for, and only moves from a place in the node's domain.
    fn moves_within(&self, task: usize, search: usize, node: usize) -> bool {
        self.company.only_moves
            && self.is_found(task, search)
            && self.own(task, search, node, Presence::Leaves) > 0
    }

    /// How many pods that a search finds are company for the task in the node's domain.
    fn company_of(&self, task: usize, search: usize, node: usize) -> u64 {
        let leaving = match self.counts_leaving() {
            true => self.company.search(search).found(node, Presence::Leaves),
            false => 0,
        };
        leaving + self.others(task, search, node, Presence::Stays)
    }

    /// Whether pods that are about to leave are company, too, as in KAI: even for themselves where they are placed anew.
    fn counts_leaving(&self) -> bool {
        self.settings.goes(KaiBehavior::CountsLeaving)
    }

    /// The first rule about even spreading that the task would break.
    fn uneven(&self, task: usize, part: &TaskAffinity, node: usize) -> Option<usize> {
        let evenness = self.evenness(task).filter(|_| !part.even.is_empty())?;
        let mut rules = part.even.iter().zip(&evenness.must);
        rules.position(|(&search, levels)| {
            let domain = self.company.search(search).domains[node];
            !domain.is_some_and(|domain| levels.has_room(domain))
        })
    }

    /// How many other pods that a search finds are in the node's domain.
    pub(crate) fn others(
        &self,
        task: usize,
        search: usize,
        node: usize,
        presence: Presence,
    ) -> u64 {
        let all = self.company.search(search).found(node, presence);
        match self.is_found(task, search) {
            true => all - self.own(task, search, node, presence),
            false => all,
        }
    }

    /// How many other pods that want to be apart from what a search finds are in the node's domain.
    fn averse(&self, task: usize, search: usize, node: usize, presence: Presence) -> u64 {
        let all = self.company.search(search).averse(node, presence);
        let part = self.company.part(task);
        match part.is_some_and(|part| part.apart.contains(&search)) {
            true => all - self.own(task, search, node, presence),
            false => all,
        }
    }

    /// How often the task itself is in the node's domain.
    fn own(&self, task: usize, search: usize, node: usize, presence: Presence) -> u64 {
        let search = self.company.search(search);
        search.count(&self.standings[task], node, presence)
    }

    /// Whether a search finds the task.
    pub(crate) fn is_found(&self, task: usize, search: usize) -> bool {
        let part = self.company.part(task);
        part.is_some_and(|part| part.found_by.contains(&search))
    }
}

#[cfg(test)]
mod tests;
