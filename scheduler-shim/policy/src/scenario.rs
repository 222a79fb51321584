//! Which sets of victims to try, in which order.
//!
//! Victims are taken in order, one batch at a time. A batch is what goes together: a pod above its job's minimum,
//! or all of a job. After each batch, one of two strategies offers sets of the victims so far: those on one node of
//! the last batch's job (few victims, one place), or those on the first few nodes that together could hold the
//! request (gangs that span nodes). No set is offered twice, and none that counting shows to be too small.
//!
//! # Decision: a set may spare the pods that the job must be near
//! Victims are taken in the order of their jobs, so the pods that the job has required affinity to may come first. Once they
//! leave in a set, the job's first pod may go anywhere, and may choose a place where the rest does not fit. So each set of a
//! node is offered again without them. KAI counts pods that leave as present, and needs no such set.

use std::collections::{BTreeMap, BTreeSet};

use crate::capacity_bound::{CapacityBound, freed_by};
use crate::job_order::{JobOrder, VictimFilter};
use crate::resource_vector::ResourceVector;
use crate::session::Session;
use crate::victim_nodes::{CardDemand, VictimNodes};

/// Pods that are evicted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VictimBatch {
    pub(crate) job: usize,
    pub(crate) tasks: Vec<usize>,
}

/// How sets of victims are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VictimSelection {
    Local,
    /// The first few nodes that could hold the request.
    Spanning,
}

impl VictimSelection {
    pub(crate) const ALL: [Self; 2] = [Self::Local, Self::Spanning];
}

/// What a search knows before it looks at victims.
pub(crate) struct ScenarioContext<'r> {
    /// Victims that a smaller part of the same job already needed.
    pub(crate) recorded: &'r [VictimBatch],
    pub(crate) demand: CardDemand,
    /// The affinity terms of pods that the job must be near.
    pub(crate) near: BTreeSet<usize>,
    pub(crate) bound: &'r CapacityBound,
    /// Whether a victim may lose its place for good, or may only be moved.
    pub(crate) may_lose: &'r VictimFilter<'r>,
}

/// A set that is not built yet.
#[derive(Clone, Copy, Debug)]
enum VictimSet {
    /// All victims of this job only.
    LastJobOnly(usize),
    /// All victims of the jobs that have one on this node.
    Node(usize),
    /// The same without those that the waiting job must be near.
    NodeWithoutNeighbours(usize),
    /// All victims on this many of the first nodes.
    First(usize),
}

/// The sets of victims for one search, one after the other.
pub(crate) struct VictimScenarios<'r> {
    selection: VictimSelection,
    job_order: JobOrder<'r>,
    wanted: ScenarioContext<'r>,
    recorded_tasks: BTreeSet<usize>,
    /// What the recorded victims leave free, by node.
    recorded_freed: BTreeMap<usize, ResourceVector>,
    potential: Vec<VictimBatch>,
    /// The batches of each job.
    by_job: BTreeMap<usize, Vec<usize>>,
    spans: VictimNodes,
    /// What could be lost: by the recorded victims and the victims so far.
    lost: ResourceVector,
    drafts: Vec<VictimSet>,
    has_begun: bool,
}

impl<'r> VictimScenarios<'r> {
    pub(crate) fn new(
        session: &Session<'_>,
        selection: VictimSelection,
        job_order: JobOrder<'r>,
        wanted: ScenarioContext<'r>,
        feasible: &BTreeSet<usize>,
    ) -> Self {
        let recorded = wanted.recorded.iter().flat_map(|batch| &batch.tasks);
        let recorded_tasks: BTreeSet<usize> = recorded.copied().collect();
        let mut recorded_freed: BTreeMap<usize, ResourceVector> = BTreeMap::new();
        let mut lost = ResourceVector::default();
        for (node, parts) in recorded_tasks
            .iter()
            .filter_map(|&task| freed_by(session, task))
        {
            let freed = recorded_freed.entry(node).or_default();
            *freed = freed.plus(parts);
            lost = lost.plus(parts);
        }
        Self {
            selection,
            job_order,
            spans: VictimNodes::new(session, wanted.demand, &recorded_tasks, feasible),
            wanted,
            recorded_tasks,
            recorded_freed,
            potential: Vec::new(),
            by_job: BTreeMap::new(),
            lost,
            drafts: Vec::new(),
            has_begun: false,
        }
    }

    /// The next set of victims, without the recorded ones.
    pub(crate) fn next(&mut self, session: &Session<'_>) -> Option<Vec<VictimBatch>> {
        loop {
            while let Some(draft) = self.drafts.pop() {
                let set = self.set_of(session, draft);
                if !set.is_empty() && self.could_do(session, &set) {
                    let batches = set.into_iter().map(|batch| self.potential[batch].clone());
                    return Some(batches.collect());
                }
            }
            // The victims of the smaller part may already be enough, so they are tried without any others.
            if !self.has_begun {
                self.has_begun = true;
                if !self.wanted.recorded.is_empty() {
                    return Some(Vec::new());
                }
            }
            self.advance(session)?;
            // Until the victims together hold what the job lacks, no subset of them can be enough.
            if self.wanted.bound.is_within(self.lost) {
                self.drafts = match self.selection {
                    VictimSelection::Local => self.nodes_of_last(session),
                    VictimSelection::Spanning => {
                        self.spans.sorted().map(VictimSet::First).collect()
                    }
                };
                // `pop` takes from the end, and the first draft disturbs the fewest jobs.
                self.drafts.reverse();
            }
        }
    }

    /// Whether every task could have a place if these victims left.
    fn could_do(&self, session: &Session<'_>, set: &[usize]) -> bool {
        session.spend(set.len());
        let mut freed = self.recorded_freed.clone();
        let leaving = set.iter().flat_map(|&batch| &self.potential[batch].tasks);
        for (node, parts) in leaving.filter_map(|&task| freed_by(session, task)) {
            let sum = freed.entry(node).or_default();
            *sum = sum.plus(parts);
        }
        self.wanted.bound.fits(freed)
    }

    fn set_of(&self, session: &Session<'_>, draft: VictimSet) -> Vec<usize> {
        let mut set: Vec<usize> = match draft {
            VictimSet::Node(node) => self.batches_of(&self.jobs_on(node)),
            VictimSet::NodeWithoutNeighbours(node) => {
                let all = self.jobs_on(node);
                let mut others = all.clone();
                others.retain(|&job| !self.is_neighbour(session, job));
                if others.len() == all.len() {
                    Vec::new()
                } else {
                    self.batches_of(&others)
                }
            }
            VictimSet::LastJobOnly(job) => self.by_job.get(&job).cloned().unwrap_or_default(),
            VictimSet::First(count) => self.with_earlier_batches(self.spans.on_first(count)),
        };
        set.sort_unstable();
        set.dedup();
        set
    }

    /// The jobs of the victims so far that have one on this node.
    fn jobs_on(&self, node: usize) -> BTreeSet<usize> {
        let there = self.spans.on_node(node).iter();
        there.map(|&batch| self.potential[batch].job).collect()
    }

    fn batches_of(&self, jobs: &BTreeSet<usize>) -> Vec<usize> {
        let batches = jobs.iter().filter_map(|job| self.by_job.get(job));
        batches.flatten().copied().collect()
    }

    /// Whether the waiting job must be near a victim of this job.
    fn is_neighbour(&self, session: &Session<'_>, job: usize) -> bool {
        let terms = session.facts().affinity_terms();
        let batches = self.by_job.get(&job).into_iter().flatten();
        let mut tasks = batches.flat_map(|&batch| &self.potential[batch].tasks);
        tasks.any(|&task| {
            self.wanted
                .near
                .iter()
                .any(|&term| terms.matches(term, task))
        })
    }

    /// Adds the batches that come before these in their jobs: a gang's core leaves only after the pods above its
    /// minimum.
    fn with_earlier_batches(&self, batches: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut last_of: BTreeMap<usize, usize> = BTreeMap::new();
        for batch in batches {
            let last = last_of.entry(self.potential[batch].job).or_default();
            *last = batch.max(*last);
        }
        last_of
            .into_iter()
            .flat_map(|(job, last): (usize, usize)| {
                let batches = self.by_job[&job].iter().copied();
                batches.take_while(move |&batch| batch <= last)
            })
            .collect()
    }

    /// Takes one batch more; `None` if there are no more victims.
    fn advance(&mut self, session: &Session<'_>) -> Option<()> {
        loop {
            let view = self.job_order.pop(session)?;
            let (tasks, has_more) = session.gang(&view).next_victims();
            // Recorded victims are part of every set. The rest of their job is offered again without them.
            if tasks.iter().any(|task| self.recorded_tasks.contains(task)) {
                let remaining = view.only(|task| !self.recorded_tasks.contains(&task));
                if remaining.all().next().is_some() {
                    self.job_order.push(session, remaining);
                }
                continue;
            }
            if tasks.is_empty() {
                continue;
            }
            if has_more {
                self.job_order.push(session, view.without(&tasks));
            }
            let job = view.job;
            // What a job that may only move gives up, it takes elsewhere: nothing is gained by it.
            if (self.wanted.may_lose)(session, job) {
                let parts = tasks.iter().filter_map(|&task| freed_by(session, task));
                self.lost = parts.fold(self.lost, |lost, (_, parts)| lost.plus(parts));
            }
            let index = self.potential.len();
            self.by_job.entry(job).or_default().push(index);
            self.spans.add(session, index, &tasks);
            self.potential.push(VictimBatch { job, tasks });
            return Some(());
        }
    }

    /// The sets for the nodes of the last victim's job.
    fn nodes_of_last(&self, session: &Session<'_>) -> Vec<VictimSet> {
        let last = self.potential.last();
        let nodes: BTreeSet<usize> = last
            .into_iter()
            .flat_map(|batch| session.facts().job(batch.job).view.all())
            .filter_map(|task| session.state().task(task).node)
            .collect();
        // Where cards differ in size, the last victim may be the first on a card that is large enough.
        let last_job_only = last
            .filter(|_| {
                nodes
                    .iter()
                    .any(|node| session.state().node(*node).sizes.count() > 1)
            })
            .map(|batch| VictimSet::LastJobOnly(batch.job));
        last_job_only
            .into_iter()
            .chain(nodes.iter().copied().map(VictimSet::Node))
            .chain(
                nodes
                    .iter()
                    .filter(|_| !self.wanted.near.is_empty())
                    .map(|&node| VictimSet::NodeWithoutNeighbours(node)),
            )
            .collect()
    }
}
