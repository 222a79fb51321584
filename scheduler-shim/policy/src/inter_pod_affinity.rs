//! Inter-pod affinity: how many pods match each term, and where.
//!
//! When a session opens, the terms of all pods are numbered. Each different term is a [`TermMatches`], called a
//! search here, and each pod knows which searches match it. From then on, a pod that comes or goes changes a few
//! counts. Whether a domain has matching pods is one lookup, however many pods and nodes there are.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::cluster::{ForeignPod, Node, PodAffinityTerm, PreferredTerm, TaskStatus};
use crate::session::caches::TopologySpread;
use crate::session::facts::{TaskFacts, TaskState};

mod term_index;

use term_index::TermIndex;

/// All affinity terms, and where pods match them.
#[derive(Debug, Default)]
pub(crate) struct InterPodAffinity {
    searches: Vec<TermMatches>,
    /// By task.
    parts: Vec<TaskAffinity>,
    /// How often a count changed.
    pub(crate) moves: u64,
    /// Whether pods leave only to be placed again. Then no pod is the first of its kind while another of it moves.
    pub(crate) only_moves: bool,
    /// The topology spread that was asked for last.
    pub(crate) evenness: RefCell<Option<Rc<TopologySpread>>>,
}

/// The searches for a task's terms, and the searches that match the task.
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

/// The pods that match one term.
#[derive(Debug)]
pub(crate) struct TermMatches {
    /// The node label whose values are the domains.
    pub(crate) label: String,
    /// The domain of each node, by number; `None` if the node has no such label.
    pub(crate) domains: Rc<Vec<Option<usize>>>,
    /// Whether any pod has anti-affinity to matching pods.
    may_be_refused: bool,
    /// Matching pods.
    found: PresenceCounts,
    /// Pods with anti-affinity to matching pods.
    anti_affinity_count: PresenceCounts,
}

/// Those that stay where they are, and those that are about to leave.
#[derive(Debug, Default)]
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
#[derive(Debug, Default)]
pub(crate) struct PodCounts {
    all: u64,
    by_domain: BTreeMap<usize, u64>,
    by_node: BTreeMap<usize, u64>,
}

impl PodCounts {
    fn note(&mut self, node: usize, domain: Option<usize>, is_more: bool) {
        let step = |count: &mut u64| {
            *count = if is_more { *count + 1 } else { *count - 1 };
            *count > 0
        };
        step(&mut self.all);
        let listed = [
            (&mut self.by_node, Some(node)),
            (&mut self.by_domain, domain),
        ];
        for (counts, place) in listed {
            let Some(place) = place else { continue };
            if !step(counts.entry(place).or_default()) {
                counts.remove(&place);
            }
        }
    }

    fn around(&self, domain: Option<usize>) -> u64 {
        let count = domain.and_then(|domain| self.by_domain.get(&domain));
        count.copied().unwrap_or(0)
    }
}

/// Whether a pod is to stay on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Stays,
    Leaves,
}

impl InterPodAffinity {
    pub(crate) fn of(nodes: &[&Node], tasks: &[TaskFacts<'_>], bystanders: &[ForeignPod]) -> Self {
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
            part.found_by = finder.finding(&task.task.labels);
        }
        let mut inter_pod_affinity = Self {
            searches: searches(nodes, &wanted),
            ..Self::default()
        };
        let dreaded = parts.iter().map(|part| &part.apart).chain(&others);
        for &search in dreaded.flatten() {
            inter_pod_affinity.searches[search].may_be_refused = true;
        }
        for (one, apart) in bystanders.iter().zip(others) {
            let place = nodes.binary_search_by(|node| node.name.cmp(&one.node));
            let part = TaskAffinity {
                found_by: finder.finding(&one.labels),
                averse_to: each_once(&apart),
                ..TaskAffinity::default()
            };
            if let Ok(node) = place {
                note(
                    &mut inter_pod_affinity.searches,
                    &part,
                    (node, Presence::Stays),
                    true,
                );
            }
        }
        inter_pod_affinity.parts = parts;
        inter_pod_affinity
    }

    /// Counts a task that comes to a node or leaves it.
    pub(crate) fn note(&mut self, task: usize, node: usize, presence: Presence, is_more: bool) {
        let Some(part) = self.parts.get(task) else {
            return;
        };
        if !part.found_by.is_empty() || !part.averse_to.is_empty() {
            self.moves += 1;
            note(&mut self.searches, part, (node, presence), is_more);
        }
    }

    pub(crate) fn part(&self, task: usize) -> Option<&TaskAffinity> {
        self.parts.get(task)
    }

    pub(crate) fn search(&self, search: usize) -> &TermMatches {
        &self.searches[search]
    }

    /// Whether any pod might have anti-affinity to a task.
    pub(crate) fn may_be_refused(&self, task: usize) -> bool {
        let searches = self.parts.get(task).map(|part| &part.found_by);
        let mut searches = searches.into_iter().flatten();
        searches.any(|&search| self.searches[search].may_be_refused)
    }

    /// The searches for which some pod might have anti-affinity to a task.
    pub(crate) fn refusing(&self, part: &TaskAffinity) -> impl Iterator<Item = usize> {
        let searches = part.found_by.iter().copied();
        searches.filter(|&search| self.searches[search].may_be_refused)
    }
}

impl TermMatches {
    /// How many matching pods are in the node's domain.
    pub(crate) fn found(&self, node: usize, presence: Presence) -> u64 {
        self.found.of(presence).around(self.domains[node])
    }

    /// How many pods in the node's domain have anti-affinity to matching pods.
    pub(crate) fn anti_affinity_count(&self, node: usize, presence: Presence) -> u64 {
        self.anti_affinity_count
            .of(presence)
            .around(self.domains[node])
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

    /// How many of a task's places with that presence are in the node's domain.
    pub(crate) fn count(&self, state: &TaskState, node: usize, presence: Presence) -> u64 {
        let domain = self.domains[node];
        let here = places(state).filter(|&(place, its)| {
            its == presence && domain.is_some() && self.domains[place] == domain
        });
        here.count() as u64
    }
}

/// The nodes of a task: the one that it has, and the one that it has yet to leave.
pub(crate) fn places(state: &TaskState) -> impl Iterator<Item = (usize, Presence)> {
    let leaves = state
        .leaves
        .as_ref()
        .map(|(node, _)| (*node, Presence::Leaves));
    let node = state.node.filter(|_| state.status.is_active());
    let presence = match state.status {
        TaskStatus::Releasing => Presence::Leaves,
        _ => Presence::Stays,
    };
    leaves.into_iter().chain(node.map(|node| (node, presence)))
}

fn note(
    searches: &mut [TermMatches],
    part: &TaskAffinity,
    place: (usize, Presence),
    is_more: bool,
) {
    let (node, presence) = place;
    for &search in &part.found_by {
        let search = &mut searches[search];
        let counts = search.found.of_mut(presence);
        counts.note(node, search.domains[node], is_more);
    }
    for &search in &part.averse_to {
        let search = &mut searches[search];
        let counts = search.anti_affinity_count.of_mut(presence);
        counts.note(node, search.domains[node], is_more);
    }
}

fn searches<'w>(nodes: &[&Node], wanted: &'w [Cow<'_, PodAffinityTerm>]) -> Vec<TermMatches> {
    let mut known: BTreeMap<&'w str, Rc<Vec<Option<usize>>>> = BTreeMap::new();
    let search = |wanted: &'w Cow<'_, PodAffinityTerm>| {
        let label = wanted.domain.as_str();
        let domains = known
            .entry(label)
            .or_insert_with(|| Rc::new(domains_of(nodes, label)));
        TermMatches {
            label: label.to_owned(),
            domains: Rc::clone(domains),
            may_be_refused: false,
            found: PresenceCounts::default(),
            anti_affinity_count: PresenceCounts::default(),
        }
    };
    wanted.iter().map(search).collect()
}

/// The domains of nodes, numbered by the values of a label.
fn domains_of(nodes: &[&Node], label: &str) -> Vec<Option<usize>> {
    let labels = nodes.iter().map(|node| node.labels.get(label));
    let values: BTreeSet<&String> = labels.clone().flatten().collect();
    let values: Vec<&String> = values.into_iter().collect();
    let number = |value| values.binary_search(&value).ok();
    labels.map(|value| number(value?)).collect()
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

    fn part(&mut self, facts: &TaskFacts<'a>) -> TaskAffinity {
        let task = facts.task;
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
                .map(|one| match &one.wish {
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
