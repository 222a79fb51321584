//! Finds room for a job by evicting others.
//!
//! A set of victims is tried, not reasoned about: they are evicted, the job is placed, and the victims are placed
//! again as far as there is room. A pod that gets its old place back was no victim after all. Then the action says
//! whether the outcome is fair. A gang is tried with more and more of its pods, and the search for the next part
//! begins with the victims that the last part needed.

use std::collections::BTreeSet;

use apportion_abi::Share as CardShare;

use crate::capacity_bound::CapacityBound;
use crate::cluster::{KaiBehavior, TaskGpuRequest, TaskStatus};
use crate::gang::JobView;
use crate::job_order::{JobOrder, VictimFilter};
use crate::jobs_by_queue::JobsByQueue;
use crate::scenario::{ScenarioContext, VictimBatch, VictimScenarios, VictimSelection};
use crate::session::Session;
use crate::victim_nodes::CardDemand;

/// Whether an outcome is fair, given the job's placed tasks and the victims.
pub(crate) type FairnessCheck<'s> = dyn Fn(&Session<'_>, &[usize], &[VictimBatch]) -> bool + 's;

/// A search for victims.
pub(crate) struct VictimSearch<'s> {
    /// The job that needs room.
    pub(crate) job: JobView,
    /// The running jobs that could be evicted.
    pub(crate) victims: &'s JobsByQueue,
    /// Which of them may be evicted for this job.
    pub(crate) may_leave: &'s VictimFilter<'s>,
    /// Which of those may lose their place for good; the others only move.
    pub(crate) may_lose: &'s VictimFilter<'s>,
    /// Other waiting jobs, which may have a turn before.
    pub(crate) waiting: &'s JobsByQueue,
    /// Whether an outcome is fair.
    pub(crate) is_fair: &'s FairnessCheck<'s>,
    /// The session's effort at which the search stops.
    pub(crate) until: u64,
}

impl Session<'_> {
    /// Finds victims for a job and places it; on failure nothing has changed.
    pub(crate) fn solve(&mut self, search: &VictimSearch<'_>) -> bool {
        let gang = self.gang(&search.job);
        let tasks = gang.next(false);
        if tasks.is_empty() {
            return false;
        }
        if CapacityBound::of(self, &tasks).is_none() {
            return false;
        }
        let feasible = self.feasible_nodes(&search.job);
        let mut ways = VictimSelection::ALL.into_iter();
        ways.any(|way| self.solve_in(way, search, &tasks, &feasible))
    }

    fn solve_in(
        &mut self,
        way: VictimSelection,
        search: &VictimSearch<'_>,
        tasks: &[usize],
        feasible: &BTreeSet<usize>,
    ) -> bool {
        let mut recorded = Vec::new();
        if !self.grow(way, search, tasks, feasible, &mut recorded) {
            return false;
        }
        // `grow` undid its trials; this one stays applied.
        let mark = self.mark();
        let solved = self
            .probe(way, search, tasks, feasible, &recorded)
            .is_some()
            && self.gang(&search.job).has_enough();
        if !solved {
            self.roll_back(mark);
        }
        solved
    }

    /// Finds the largest part of the job that can be placed, doubling and then halving the step; returns whether
    /// any part can. `recorded` gets the victims of that part.
    fn grow(
        &mut self,
        way: VictimSelection,
        search: &VictimSearch<'_>,
        tasks: &[usize],
        feasible: &BTreeSet<usize>,
        recorded: &mut Vec<VictimBatch>,
    ) -> bool {
        let (mut solved, mut failed) = (0, tasks.len() + 1);
        let mut part = 1;
        while failed - solved > 1 {
            let mark = self.mark();
            let found = self.probe(way, search, &tasks[..part], feasible, recorded);
            self.roll_back(mark);
            match found {
                Some(victims) => {
                    *recorded = victims;
                    solved = part;
                }
                None => failed = part,
            }
            part = if failed > tasks.len() {
                (part * 2).min(tasks.len())
            } else {
                usize::midpoint(solved, failed)
            };
        }
        solved > 0
    }

    /// Tries sets of victims for a part of the job; the first that works stays applied.
    fn probe(
        &mut self,
        way: VictimSelection,
        search: &VictimSearch<'_>,
        tasks: &[usize],
        feasible: &BTreeSet<usize>,
        recorded: &[VictimBatch],
    ) -> Option<Vec<VictimBatch>> {
        let view = self.part_of(&search.job, tasks);
        let line = JobOrder::of_victims(self, search.victims, search.may_leave);
        let mut nodes = feasible.clone();
        nodes.extend(self.places(recorded));
        let reach = CapacityBound::of(self, tasks)?;
        let wanted = ScenarioContext {
            recorded,
            demand: self.card_demand(tasks),
            reach: &reach,
            may_lose: search.may_lose,
        };
        let mut scenarios = VictimScenarios::new(self, way, line, wanted, &nodes);
        while self.effort.get() < search.until {
            let potential = scenarios.next(self)?;
            let batches = [recorded, &potential].concat();
            let mark = self.mark();
            if let Some(victims) = self.attempt(search, &view, tasks, &nodes, batches) {
                return Some(victims);
            }
            self.roll_back(mark);
        }
        None
    }

    /// The job with its placed tasks and only these of its waiting tasks.
    fn part_of(&self, job: &JobView, tasks: &[usize]) -> JobView {
        let has_place = |task: usize| self.task_states[task].status.is_active_allocated();
        let part = job.only(|task| has_place(task) || tasks.contains(&task));
        part.with_reachable_minimums(&self.jobs[job.job].tree)
    }

    fn card_demand(&self, tasks: &[usize]) -> CardDemand {
        // A request in bytes says nothing before a node is chosen.
        let asks = || {
            tasks.iter().map(|&task| {
                let facts = &self.tasks[task];
                let cards = match &facts.task.cards {
                    TaskGpuRequest::Shared {
                        share: CardShare::Memory(_),
                        ..
                    } => 0.0,
                    cards => cards.count(self.card_sizes.0),
                };
                cards + facts.claimed_cards as f64
            })
        };
        CardDemand {
            sum: asks().sum(),
            least: asks().fold(f64::MAX, f64::min),
        }
    }

    /// Nodes where the job could get something if nobody leaves.
    fn feasible_nodes(&self, job: &JobView) -> BTreeSet<usize> {
        if job.all().all(|task| self.wants_cards(task)) {
            self.free_capacity().with_cards().clone()
        } else {
            (0..self.nodes.len()).collect()
        }
    }

    fn places(&self, batches: &[VictimBatch]) -> BTreeSet<usize> {
        let tasks = batches.iter().flat_map(|batch| &batch.tasks);
        tasks
            .filter_map(|&task| self.task_states[task].node)
            .collect()
    }

    /// Evicts, places and checks; returns the batches of which a pod really has to leave.
    fn attempt(
        &mut self,
        search: &VictimSearch<'_>,
        view: &JobView,
        tasks: &[usize],
        nodes: &BTreeSet<usize>,
        batches: Vec<VictimBatch>,
    ) -> Option<Vec<VictimBatch>> {
        let mut nodes = nodes.clone();
        nodes.extend(self.places(&batches));
        let nodes: Vec<usize> = nodes.into_iter().collect();
        let broken = self.broken_gangs(&batches);
        let mut evicted = BTreeSet::new();
        for &task in batches.iter().flat_map(|batch| &batch.tasks) {
            if self.task_states[task].status.is_active_allocated() {
                evicted.insert(task);
                self.evict(task);
            }
        }
        if evicted.is_empty() || !self.place_again(search.waiting, view, &batches, &nodes) {
            return None;
        }
        // A pod of the gang that stayed would only leave later, when the grace period is over.
        if !self.broken_gangs(&batches).is_subset(&broken) {
            return None;
        }
        // A pod that got its old place back may be one too many for the job's affinity or spread rules.
        let keeps_apart = |&task: &usize| {
            let node = self.task_states[task].node;
            node.is_none_or(|node| self.matches_neighbours(task, node))
        };
        if !tasks.iter().all(keeps_apart) || !(search.is_fair)(self, tasks, &batches) {
            return None;
        }
        let moves = |task: &usize| {
            let status = self.task_states[*task].status;
            matches!(
                status,
                TaskStatus::Releasing | TaskStatus::Pipelined | TaskStatus::Pending
            )
        };
        let is_victim = |batch: &VictimBatch| batch.tasks.iter().any(moves);
        Some(batches.into_iter().filter(is_victim).collect())
    }

    /// The victims' jobs that have some pods, but too few.
    fn broken_gangs(&self, batches: &[VictimBatch]) -> BTreeSet<usize> {
        let jobs = batches.iter().map(|batch| batch.job);
        jobs.filter(|&job| self.has_too_few(job)).collect()
    }

    /// Places the job and as many of the victims as there is room for, in the order of their queues.
    fn place_again(
        &mut self,
        waiting: &JobsByQueue,
        view: &JobView,
        batches: &[VictimBatch],
        nodes: &[usize],
    ) -> bool {
        let jobs: BTreeSet<usize> = batches.iter().map(|batch| batch.job).collect();
        let victims = jobs.into_iter().filter(|&job| job != view.job);
        let victims: Vec<JobView> = victims.map(|job| self.jobs[job].view.clone()).collect();
        let jobs = victims.into_iter().chain([view.clone()]);
        let mut line = JobOrder::among(self, jobs, waiting);
        let returns_once = self.settings.goes(KaiBehavior::ReturnsOnce);
        let mut is_placed = false;
        while let Some(next) = line.pop(self) {
            let placed = self.allocate_job(&next, nodes, true);
            if next.job == view.job {
                if !placed {
                    return false;
                }
                is_placed = true;
            } else if placed && !returns_once && self.has_lost(&next, batches) {
                // As in `allocate`: a job above its minimum gets pods one at a time.
                line.push(self, next);
            }
        }
        is_placed
    }

    /// Whether a job still lacks one of the pods that were evicted.
    fn has_lost(&self, view: &JobView, batches: &[VictimBatch]) -> bool {
        let mut tasks = batches
            .iter()
            .filter(|batch| batch.job == view.job)
            .flat_map(|batch| &batch.tasks);
        tasks.any(|&task| !self.task_states[task].status.is_active_allocated())
    }
}
