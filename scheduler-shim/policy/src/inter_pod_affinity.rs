//! Inter-pod affinity: how many pods match each term, and where.
//!
//! When a session opens, the terms of all pods are numbered, and each pod knows which terms match it: these are
//! facts, [`AffinityTerms`]. From then on, a pod that comes or goes changes a few [`AffinityCounts`]. Whether a
//! domain has matching pods is one lookup, however many pods and nodes there are.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::cluster::{ForeignPod, Node, PodAffinityTerm, PreferredTerm, Task};
use crate::task_state::{Presence, TaskState};

mod term_index;

use term_index::TermIndex;

/// All affinity terms, and which pods have and match them.
#[derive(Debug, Default)]
pub(crate) struct AffinityTerms {
    terms: Vec<NumberedTerm>,
    /// The terms of each task, by its number.
    tasks: Vec<TaskAffinity>,
    /// The nodes of pods that are not scheduled here, and their terms.
    foreign: Vec<(usize, TaskAffinity)>,
}

/// The numbers of a task's terms, and of the terms that match the task.
#[derive(Debug, Default)]
pub(crate) struct TaskAffinity {
    pub(crate) found_by: Vec<usize>,
    pub(crate) near: Vec<usize>,
    pub(crate) apart: Vec<usize>,
    /// `apart` without duplicates.
    averse_to: Vec<usize>,
    pub(crate) even: Vec<usize>,
    /// One for each preference; `None` for those about nodes alone.
    pub(crate) prefers: Vec<Option<usize>>,
}

/// A term, and the domains that its node label makes.
#[derive(Debug)]
pub(crate) struct NumberedTerm {
    /// The node label whose values are the domains.
    pub(crate) label: String,
    /// The domain of each node, by number; `None` if the node has no such label.
    domains: Rc<Vec<Option<usize>>>,
    /// Whether any pod has anti-affinity to matching pods.
    may_be_refused: bool,
}

/// How many pods match each term, and where.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AffinityCounts {
    terms: Vec<TermCounts>,
    /// How often a count changed.
    changes: u64,
}

/// The pods that match one term.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TermCounts {
    found: PresenceCounts,
    /// Pods with anti-affinity to matching pods.
    averse: PresenceCounts,
}

/// Those that stay where they are, and those that are about to leave.
#[derive(Clone, Debug, Default, PartialEq)]
struct PresenceCounts {
    stay: PodCounts,
    leave: PodCounts,
}

impl PresenceCounts {
    const fn of(&self, presence: Presence) -> &PodCounts {
        match presence {
            Presence::Stays => &self.stay,
            Presence::Leaves => &self.leave,
        }
    }

    const fn of_mut(&mut self, presence: Presence) -> &mut PodCounts {
        match presence {
            Presence::Stays => &mut self.stay,
            Presence::Leaves => &mut self.leave,
        }
    }
}

/// Counts of pods; nodes and domains without any are not listed.
#[derive(Clone, Debug, Default, PartialEq)]
struct PodCounts {
    all: u64,
    by_domain: BTreeMap<usize, u64>,
    by_node: BTreeMap<usize, u64>,
}

impl PodCounts {
    fn record(&mut self, node: usize, domain: Option<usize>, is_more: bool) {
        let step = |count: &mut u64| {
            *count = if is_more { *count + 1 } else { *count - 1 };
            *count > 0
        };
        step(&mut self.all);
        let listed = [
            (&mut self.by_node, Some(node)),
            (&mut self.by_domain, domain),
        ];
        for (counts, presence) in listed {
            let Some(presence) = presence else { continue };
            if !step(counts.entry(presence).or_default()) {
                counts.remove(&presence);
            }
        }
    }

    fn around(&self, domain: Option<usize>) -> u64 {
        let count = domain.and_then(|domain| self.by_domain.get(&domain));
        count.copied().unwrap_or(0)
    }
}

impl AffinityTerms {
    pub(crate) fn of(nodes: &[&Node], tasks: &[&Task], bystanders: &[ForeignPod]) -> Self {
        let mut numbers = TermNumbers::default();
        let mut parts: Vec<TaskAffinity> = tasks.iter().map(|task| numbers.part(task)).collect();
        let others = bystanders.iter().map(|one| numbers.each(&one.apart));
        let others: Vec<Vec<usize>> = others.collect();
        if numbers.0.is_empty() {
            return Self::default();
        }
        let wanted = numbers.in_order();
        let finder = TermIndex::of(&wanted);
        for (part, task) in parts.iter_mut().zip(tasks) {
            part.found_by = finder.finding(&task.labels);
        }
        let mut terms = numbered(nodes, &wanted);
        let refused = parts.iter().map(|part| &part.apart).chain(&others);
        for &term in refused.flatten() {
            terms[term].may_be_refused = true;
        }
        let mut foreign = Vec::new();
        for (one, apart) in bystanders.iter().zip(others) {
            let part = TaskAffinity {
                found_by: finder.finding(&one.labels),
                averse_to: each_once(&apart),
                ..TaskAffinity::default()
            };
            if let Ok(node) = nodes.binary_search_by(|node| node.name.cmp(&one.node)) {
                foreign.push((node, part));
            }
        }
        Self {
            terms,
            tasks: parts,
            foreign,
        }
    }

    pub(crate) fn of_task(&self, task: usize) -> Option<&TaskAffinity> {
        self.tasks.get(task)
    }

    pub(crate) fn term(&self, term: usize) -> &NumberedTerm {
        &self.terms[term]
    }

    /// Whether any pod might have anti-affinity to a task.
    pub(crate) fn may_be_refused(&self, task: usize) -> bool {
        let part = self.tasks.get(task);
        part.is_some_and(|part| self.refusing(part).next().is_some())
    }

    /// The terms for which some pod might have anti-affinity to a task.
    pub(crate) fn refusing(&self, part: &TaskAffinity) -> impl Iterator<Item = usize> {
        let found_by = part.found_by.iter().copied();
        found_by.filter(|&term| self.terms[term].may_be_refused)
    }

    /// Whether a term matches the task.
    pub(crate) fn matches(&self, term: usize, task: usize) -> bool {
        let part = self.tasks.get(task);
        part.is_some_and(|part| part.found_by.contains(&term))
    }

    /// The terms of pods that these tasks must be near.
    pub(crate) fn needed_by(&self, tasks: &[usize]) -> BTreeSet<usize> {
        let parts = tasks.iter().filter_map(|&task| self.tasks.get(task));
        parts.flat_map(|part| part.near.iter().copied()).collect()
    }

    /// How many of a task's places with that presence are in the node's domain.
    pub(crate) fn count(
        &self,
        term: usize,
        state: &TaskState,
        node: usize,
        presence: Presence,
    ) -> u64 {
        let domains = &self.terms[term].domains;
        let Some(domain) = domains[node] else {
            return 0;
        };
        let here = state
            .presences()
            .filter(|&(node, its)| its == presence && domains[node] == Some(domain));
        here.count() as u64
    }
}

impl NumberedTerm {
    /// The domain of a node; `None` if the node has no such label.
    pub(crate) fn domain(&self, node: usize) -> Option<usize> {
        self.domains[node]
    }

    /// How many domains there are.
    pub(crate) fn domain_count(&self) -> usize {
        let last = self.domains.iter().flatten().max();
        last.map_or(0, |last| last + 1)
    }
}

impl AffinityCounts {
    /// The counts of the pods that are not scheduled here.
    pub(crate) fn of(terms: &AffinityTerms) -> Self {
        let mut counts = Self {
            terms: vec![TermCounts::default(); terms.terms.len()],
            changes: 0,
        };
        for (node, part) in &terms.foreign {
            counts.record_terms(terms, part, (*node, Presence::Stays), true);
        }
        counts
    }

    /// Counts a task that comes to a node or leaves it.
    pub(crate) fn record(
        &mut self,
        terms: &AffinityTerms,
        task: usize,
        presence: (usize, Presence),
        is_more: bool,
    ) {
        let Some(part) = terms.of_task(task) else {
            return;
        };
        if !part.found_by.is_empty() || !part.averse_to.is_empty() {
            self.changes += 1;
            self.record_terms(terms, part, presence, is_more);
        }
    }

    fn record_terms(
        &mut self,
        terms: &AffinityTerms,
        part: &TaskAffinity,
        presence: (usize, Presence),
        is_more: bool,
    ) {
        let (node, presence) = presence;
        for &term in &part.found_by {
            let counts = self.terms[term].found.of_mut(presence);
            counts.record(node, terms.term(term).domains[node], is_more);
        }
        for &term in &part.averse_to {
            let counts = self.terms[term].averse.of_mut(presence);
            counts.record(node, terms.term(term).domains[node], is_more);
        }
    }

    /// How often a count changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether all counts are the same, however often they changed.
    #[cfg(test)]
    pub(crate) fn has_same_counts(&self, other: &Self) -> bool {
        self.terms == other.terms
    }

    pub(crate) fn term(&self, term: usize) -> &TermCounts {
        &self.terms[term]
    }
}

impl TermCounts {
    /// How many matching pods are in a domain.
    pub(crate) fn found(&self, domain: Option<usize>, presence: Presence) -> u64 {
        self.found.of(presence).around(domain)
    }

    /// How many pods in a domain have anti-affinity to matching pods.
    pub(crate) fn averse(&self, domain: Option<usize>, presence: Presence) -> u64 {
        self.averse.of(presence).around(domain)
    }

    /// How many matching pods stay, on any node.
    pub(crate) fn anywhere(&self) -> u64 {
        self.found.stay.all
    }

    /// How many matching pods are about to leave.
    pub(crate) fn leaving(&self) -> u64 {
        self.found.leave.all
    }

    /// How many matching pods stay, by node.
    pub(crate) fn by_node(&self) -> &BTreeMap<usize, u64> {
        &self.found.stay.by_node
    }
}

fn numbered<'w>(nodes: &[&Node], wanted: &'w [Cow<'_, PodAffinityTerm>]) -> Vec<NumberedTerm> {
    let mut known: BTreeMap<&'w str, Rc<Vec<Option<usize>>>> = BTreeMap::new();
    wanted
        .iter()
        .map(|wanted| {
            let label = wanted.domain.as_str();
            let domains = known
                .entry(label)
                .or_insert_with(|| Rc::new(domains_of(nodes, label)));
            NumberedTerm {
                label: label.to_owned(),
                domains: Rc::clone(domains),
                may_be_refused: false,
            }
        })
        .collect()
}

/// The domains of nodes, numbered by the values of a label.
fn domains_of(nodes: &[&Node], label: &str) -> Vec<Option<usize>> {
    let labels = nodes.iter().map(|node| node.labels.get(label));
    let values: BTreeSet<&String> = labels.clone().flatten().collect();
    let values: Vec<&String> = values.into_iter().collect();
    labels
        .map(|value| values.binary_search(&value?).ok())
        .collect()
}

fn each_once(searches: &[usize]) -> Vec<usize> {
    let all: BTreeSet<usize> = searches.iter().copied().collect();
    all.into_iter().collect()
}

/// The numbers of terms; equal terms have one number.
#[derive(Default)]
struct TermNumbers<'a>(BTreeMap<Cow<'a, PodAffinityTerm>, usize>);

impl<'a> TermNumbers<'a> {
    fn of(&mut self, wanted: Cow<'a, PodAffinityTerm>) -> usize {
        let next = self.0.len();
        *self.0.entry(wanted).or_insert(next)
    }

    fn each(&mut self, wanted: &'a [PodAffinityTerm]) -> Vec<usize> {
        let wanted = wanted.iter();
        wanted.map(|one| self.of(Cow::Borrowed(one))).collect()
    }

    fn part(&mut self, task: &'a Task) -> TaskAffinity {
        let apart = self.each(&task.apart);
        TaskAffinity {
            found_by: Vec::new(),
            near: self.near(&task.near),
            averse_to: each_once(&apart),
            apart,
            even: (task.even.iter())
                .map(|spread| self.of(Cow::Borrowed(&spread.like)))
                .collect(),
            prefers: (task.prefers.iter())
                .map(|one| match &one.term {
                    PreferredTerm::Label(_) => None,
                    PreferredTerm::Near(wanted) => Some(self.of(Cow::Borrowed(wanted))),
                    PreferredTerm::Even(spread) => Some(self.of(Cow::Borrowed(&spread.like))),
                })
                .collect(),
        }
    }

    /// A pod with several affinity terms looks for pods that match all of them at once, as in Kubernetes' filter
    /// `InterPodAffinity`.
    fn near(&mut self, wanted: &'a [PodAffinityTerm]) -> Vec<usize> {
        if let [_] | [] = wanted {
            return self.each(wanted);
        }
        let mut labels: Vec<_> = wanted.iter().flat_map(|one| &one.labels).cloned().collect();
        labels.sort();
        labels.dedup();
        let each = wanted.iter().map(|one| PodAffinityTerm {
            labels: labels.clone(),
            domain: one.domain.clone(),
        });
        each.map(|one| self.of(Cow::Owned(one))).collect()
    }

    fn in_order(self) -> Vec<Cow<'a, PodAffinityTerm>> {
        let mut all: Vec<_> = self.0.into_iter().collect();
        all.sort_unstable_by_key(|(_, number)| *number);
        all.into_iter().map(|(wanted, _)| wanted).collect()
    }
}
