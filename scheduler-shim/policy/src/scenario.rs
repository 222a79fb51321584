//! Which sets of victims to try, in which order.
//!
//! Victims are taken from their line one batch at a time. A batch is what goes together: a pod above its
//! job's minimum, or all of a job. After each batch two ways offer sets of those taken so far: all that
//! are on one node of the last batch's job (few victims, one place), and all that are on the first few
//! nodes that together could hold what is wanted (gangs that span nodes).

use std::collections::{BTreeMap, BTreeSet};

use crate::gang::View;
use crate::line::Line;
use crate::session::Session;

/// Pods that are evicted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) job: usize,
    pub(crate) tasks: Vec<usize>,
}

/// How sets of victims are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Node by node.
    Local,
    /// The first few nodes that could do.
    Spanning,
}

impl Way {
    pub(crate) const ALL: [Self; 2] = [Self::Local, Self::Spanning];
}

/// What is wanted of cards: by how many tasks, in all, and by the most modest one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CardDemand {
    pub(crate) tasks: usize,
    pub(crate) sum: f64,
    pub(crate) least: f64,
}

impl CardDemand {
    /// How many of the most modest task there could be where so many cards are free.
    fn places(&self, free: f64) -> i64 {
        if self.least <= 0.0 {
            return 0;
        }
        let tasks = self.tasks as f64;
        ((free + 1e-6) / self.least).floor().clamp(0.0, tasks) as i64
    }
}

/// The sets of victims for one search, one after the other.
pub(crate) struct Scenarios<'r> {
    way: Way,
    line: Line<'r>,
    /// Victims that a smaller part of the same job needed already.
    recorded: &'r [Batch],
    recorded_tasks: BTreeSet<usize>,
    potential: Vec<Batch>,
    demand: CardDemand,
    /// Cards that are free, or become free with the victims so far, on any node.
    within_reach: f64,
    /// Cards that are free on each node, and places for the tasks that there are without anybody leaving.
    free: Vec<f64>,
    places: i64,
    ready: Vec<Vec<Batch>>,
    has_begun: bool,
}

impl<'r> Scenarios<'r> {
    pub(crate) fn new(
        session: &Session<'_>,
        way: Way,
        line: Line<'r>,
        recorded: &'r [Batch],
        demand: CardDemand,
    ) -> Self {
        let recorded_tasks: BTreeSet<usize> = recorded
            .iter()
            .flat_map(|batch| batch.tasks.clone())
            .collect();
        let free: Vec<f64> = (0..session.nodes.len())
            .map(|node| session.free_gpus(node))
            .collect();
        let freed: f64 = recorded_tasks
            .iter()
            .map(|&task| session.gpus_of(task))
            .sum();
        Self {
            way,
            line,
            recorded,
            recorded_tasks,
            potential: Vec::new(),
            demand,
            within_reach: free.iter().sum::<f64>() + freed,
            places: free.iter().map(|free| demand.places(*free)).sum(),
            free,
            ready: Vec::new(),
            has_begun: false,
        }
    }

    /// The next set of potential victims; the recorded ones come on top of it.
    pub(crate) fn next(
        &mut self,
        session: &Session<'_>,
        feasible: &BTreeSet<usize>,
    ) -> Option<Vec<Batch>> {
        loop {
            while let Some(set) = self.ready.pop() {
                if self.could_do(session, &set) {
                    return Some(set);
                }
            }
            if self.has_begun {
                self.advance(session)?;
                if self.within_reach + 1e-6 < self.demand.sum {
                    continue;
                }
                self.ready = match self.way {
                    Way::Local => self.local(session),
                    Way::Spanning => self.spanning(session, feasible),
                };
                self.ready.reverse();
            } else {
                self.has_begun = true;
                if !self.recorded.is_empty() {
                    return Some(Vec::new());
                }
            }
        }
    }

    /// Whether there could be a place for every task if these victims left: what can be said by counting.
    fn could_do(&self, session: &Session<'_>, set: &[Batch]) -> bool {
        if self.demand.least <= 0.0 {
            return true;
        }
        let leaving = set.iter().flat_map(|batch| &batch.tasks);
        let mut freed: BTreeMap<usize, f64> = BTreeMap::new();
        for &task in leaving.chain(&self.recorded_tasks) {
            if let Some(node) = session.standings[task].node {
                *freed.entry(node).or_default() += session.gpus_of(task);
            }
        }
        let gained = freed.into_iter().map(|(node, freed)| {
            let free = self.free[node];
            self.demand.places(free + freed) - self.demand.places(free)
        });
        let places = self.places + gained.sum::<i64>();
        places >= i64::try_from(self.demand.tasks).unwrap_or(i64::MAX)
    }

    /// Takes one batch more; none when there are no more victims.
    fn advance(&mut self, session: &Session<'_>) -> Option<()> {
        loop {
            let view = self.line.pop(session)?;
            let (tasks, has_more) = session.gang(&view).next_victims();
            let is_recorded = |task: &usize| self.recorded_tasks.contains(task);
            if tasks.iter().any(is_recorded) {
                let rest = view.only(|task| !self.recorded_tasks.contains(&task));
                if rest.all().next().is_some() {
                    self.line.push(session, rest);
                }
                continue;
            }
            if tasks.is_empty() {
                continue;
            }
            if has_more {
                self.line.push(session, view.without(&tasks));
            }
            self.within_reach += tasks.iter().map(|&task| session.gpus_of(task)).sum::<f64>();
            self.potential.push(Batch {
                job: view.job,
                tasks,
            });
            return Some(());
        }
    }

    /// For each node of the last victim's job: the victims so far of all jobs that have one there.
    fn local(&self, session: &Session<'_>) -> Vec<Vec<Batch>> {
        let Some(last) = self.potential.last() else {
            return Vec::new();
        };
        let view: &View = &session.jobs[last.job].view;
        let nodes: BTreeSet<usize> = view
            .all()
            .filter_map(|task| session.standings[task].node)
            .collect();
        let mut sets: Vec<Vec<Batch>> = Vec::new();
        for node in nodes {
            let jobs: BTreeSet<usize> =
                self.on_node(session, node).map(|batch| batch.job).collect();
            let batches = self.potential.iter();
            let set: Vec<Batch> = batches
                .filter(|batch| jobs.contains(&batch.job))
                .cloned()
                .collect();
            if !set.is_empty() && !sets.contains(&set) {
                sets.push(set);
            }
        }
        sets
    }

    fn on_node<'s>(
        &'s self,
        session: &'s Session<'_>,
        node: usize,
    ) -> impl Iterator<Item = &'s Batch> {
        let batches = self.potential.iter();
        batches.filter(move |batch| {
            let mut tasks = batch.tasks.iter();
            tasks.any(|&task| session.standings[task].node == Some(node))
        })
    }

    /// All victims on the smallest nodes that together could hold what is wanted, and on more and more.
    fn spanning(&self, session: &Session<'_>, feasible: &BTreeSet<usize>) -> Vec<Vec<Batch>> {
        let freed = self.freed_by_recorded(session);
        let freed_on = |node: usize| freed.get(&node).copied().unwrap_or(0.0);
        let by_node = self.batches_by_node(session);
        let room = |node: usize| {
            let batches = self.potential.iter().flat_map(|batch| &batch.tasks);
            let local = batches.filter(|task| session.standings[**task].node == Some(node));
            let victims: f64 = local.map(|&task| session.gpus_of(task)).sum();
            session.free_gpus(node) + freed_on(node) + victims
        };
        let mut nodes: Vec<(f64, usize, &BTreeSet<usize>)> = by_node
            .iter()
            .map(|(&node, (seen, batches))| (room(node), *seen, batches))
            .filter(|(room, ..)| self.demand.least <= 0.0 || *room + 1e-6 >= self.demand.least)
            .collect();
        nodes.sort_by(|left, right| {
            left.0
                .total_cmp(&right.0)
                .then_with(|| left.1.cmp(&right.1))
        });
        let others = feasible.iter().filter(|node| !by_node.contains_key(node));
        let baseline: f64 = others
            .map(|&node| session.free_gpus(node) + freed_on(node))
            .sum();
        let rooms: Vec<f64> = nodes.iter().map(|(room, ..)| *room).collect();
        let mut sets = Vec::new();
        for count in counts(&rooms, self.demand.sum - baseline) {
            let picked: BTreeSet<usize> = nodes
                .iter()
                .take(count)
                .flat_map(|(.., batches)| (*batches).clone())
                .collect();
            let batches = picked
                .into_iter()
                .map(|batch| self.potential[batch].clone());
            sets.push(batches.collect());
        }
        sets
    }

    fn freed_by_recorded(&self, session: &Session<'_>) -> BTreeMap<usize, f64> {
        let mut freed = BTreeMap::new();
        for &task in &self.recorded_tasks {
            if let Some(node) = session.standings[task].node {
                *freed.entry(node).or_default() += session.gpus_of(task);
            }
        }
        freed
    }

    /// For each node: when it was first seen and the batches that have a task there.
    fn batches_by_node(&self, session: &Session<'_>) -> BTreeMap<usize, (usize, BTreeSet<usize>)> {
        let mut by_node: BTreeMap<usize, (usize, BTreeSet<usize>)> = BTreeMap::new();
        let mut seen = 0;
        for (place, batch) in self.potential.iter().enumerate() {
            for &task in &batch.tasks {
                if let Some(node) = session.standings[task].node {
                    let entry = by_node.entry(node).or_insert((seen, BTreeSet::new()));
                    entry.1.insert(place);
                }
                seen += 1;
            }
        }
        by_node
    }
}

/// How many nodes to take: as few as could do, then more in growing steps.
fn counts(rooms: &[f64], demand: f64) -> Vec<usize> {
    let mut sum = 0.0;
    let mut least = 0;
    while sum + 1e-6 < demand {
        let Some(room) = rooms.get(least) else {
            return Vec::new();
        };
        sum += room;
        least += 1;
    }
    let mut counts = vec![least];
    let (mut at, mut step) = (least, 1);
    while at < rooms.len() {
        at = (at + step).min(rooms.len());
        step *= 2;
        counts.push(at);
    }
    counts
}

impl Session<'_> {
    /// Cards, whole and parts of shared ones, that are free on a node or being released.
    pub(crate) fn free_gpus(&self, node: usize) -> f64 {
        let stock = &self.stocks[node];
        stock.idle_gpus().0 + stock.releasing_gpus().0
    }

    /// How many cards a task has.
    pub(crate) fn gpus_of(&self, task: usize) -> f64 {
        let node = self.standings[task].node;
        node.map_or(0.0, |node| {
            self.charged(task, node)[crate::amounts::Resource::Gpu]
        })
    }
}
