//! The five things that the policy does, in this order.
//!
//! Each goes through the waiting jobs in the order of their queues and makes what it finds final before it
//! looks at the next, so that a later job sees what an earlier one got.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ahead::Promise;
use crate::amounts::Amounts;
use crate::cluster::{Grace, Status};
use crate::gang::View;
use crate::line::Line;
use crate::min_runtime::{self, against_reclaim, along, is_protected, keeps_minimum};
use crate::pool::Pool;
use crate::reclaimable::{Reclaimer, can_reclaim, is_candidate, reclaimable};
use crate::scenario::Batch;
use crate::session::{Mark, Session};
use crate::solve::Search;

/// The jobs that an action that evicts has to do with.
struct Pools {
    waiting: Pool,
    running: Pool,
}

impl Pools {
    fn of(session: &Session<'_>) -> Self {
        Self {
            waiting: Pool::of(session, |session, view| session.is_waiting(view)),
            running: Pool::of(session, |session, view| session.could_lose(view)),
        }
    }
}

impl Session<'_> {
    /// Places jobs on what is idle, and lets those wait that fit once others have left who are leaving.
    pub(crate) fn allocate(&mut self) {
        let nodes: Vec<usize> = (0..self.nodes.len()).collect();
        let mut line = Line::of_jobs(self, self.waiting(|_, _| true));
        while let Some(view) = line.pop(self) {
            let mark = self.mark();
            let has_started = view
                .all()
                .any(|task| self.standings[task].status.is_allocated());
            if !self.allocate_job(&view, &nodes, false) {
                self.roll_back(mark);
                continue;
            }
            let must_wait = self.gang(&view).must_wait();
            if must_wait {
                self.wait_instead(mark);
            }
            self.commit();
            if !must_wait && !has_started {
                self.jobs[view.job].last_start = Some(self.now);
            }
            if self.is_waiting(&view) {
                line.push(self, view);
            }
        }
    }

    /// Moves jobs together to make room for one that would fit.
    pub(crate) fn consolidate(&mut self) {
        if self.settings.max_consolidated == Some(0) {
            return;
        }
        let mut line = Line::of_jobs(self, self.waiting(Self::may_consolidate));
        let mut pools = Pools::of(self);
        while let Some(view) = line.pop(self) {
            if !self.could_fit(&view) {
                continue;
            }
            let limit = self.settings.max_consolidated.unwrap_or(usize::MAX);
            let job = view.job;
            let seen = Cell::new(0);
            let search = Search {
                job: view,
                victims: &pools.running,
                may_leave: &|_, victim| {
                    seen.set(seen.get() + 1);
                    victim != job && seen.get() <= limit
                },
                waiting: &pools.waiting,
                is_fair: &|session, _, batches| {
                    let mut tasks = batches.iter().flat_map(|batch| &batch.tasks);
                    tasks.all(|&task| session.standings[task].status != Status::Releasing)
                },
            };
            let (solved, job) = (self.solve(&search), search.job.job);
            self.settle(job, solved, &mut pools);
        }
    }

    /// Takes from queues that have more than they may for queues that have less.
    pub(crate) fn reclaim(&mut self) {
        if !self.settings.has_quotas {
            return;
        }
        let mut line = Line::of_jobs(self, self.waiting(Self::may_evict));
        let mut pools = Pools::of(self);
        while let Some(view) = line.pop(self) {
            let tasks = self.gang(&view).next(false);
            let Some(reclaimer) = self.reclaimer(&view, &tasks) else {
                continue;
            };
            if !can_reclaim(&self.queues, reclaimer) {
                continue;
            }
            let before = self.queues.clone();
            let job = view.clone();
            let search = Search {
                job: view,
                victims: &pools.running,
                may_leave: &|session, victim| session.may_reclaim_from(reclaimer, victim),
                waiting: &pools.waiting,
                is_fair: &move |session, tasks, batches| {
                    let reclaimer = session.reclaimer(&job, tasks);
                    reclaimer.is_some_and(|reclaimer| {
                        let lost = session.lost(batches);
                        let multiplier = session.settings.saturation_multiplier;
                        reclaimable(&before, reclaimer, &lost, multiplier)
                            && session.keeps_minimums(batches, |session, victim| {
                                session.is_safe_from_reclaim(reclaimer.queue, victim)
                            })
                    })
                },
            };
            let (solved, job) = (self.solve(&search), search.job.job);
            self.settle(job, solved, &mut pools);
        }
    }

    /// Takes from jobs of lower priority in the same queue.
    pub(crate) fn preempt(&mut self) {
        let mut line = Line::of_jobs(self, self.waiting(Self::may_evict));
        let mut pools = Pools::of(self);
        while let Some(view) = line.pop(self) {
            let tasks = self.gang(&view).next(false);
            let least = self.least_charge(&tasks);
            if !self.is_within_quota(view.job, least) {
                continue;
            }
            let preemptor = view.job;
            let search = Search {
                job: view,
                victims: &pools.running,
                may_leave: &|session, victim| session.may_preempt(preemptor, victim),
                waiting: &pools.waiting,
                is_fair: &|session, _, batches| {
                    session.keeps_minimums(batches, |session, victim| {
                        session.is_safe_from_preemption(victim)
                    })
                },
            };
            let (solved, job) = (self.solve(&search), search.job.job);
            self.settle(job, solved, &mut pools);
        }
    }

    /// Ends what is left of gangs that have had too few pods for too long.
    pub(crate) fn evict_stale_gangs(&mut self) {
        for job in 0..self.jobs.len() {
            let view = self.jobs[job].view.clone();
            let facts = self.jobs[job].job;
            if !self.gang(&view).is_stale() {
                continue;
            }
            let for_so_long = self
                .now
                .saturating_sub(facts.stale_since.unwrap_or(self.now));
            let is_over = match facts.grace.unwrap_or(self.settings.grace) {
                Grace::For(grace) => for_so_long >= grace,
                Grace::Forever => false,
            };
            let active = |task: &usize| self.standings[*task].status.is_active_allocated();
            let tasks: Vec<usize> = view.all().filter(|task| is_over && active(task)).collect();
            for task in tasks {
                self.evict(task);
            }
            self.commit();
        }
    }

    /// Makes a solution final and tells the pools.
    fn settle(&mut self, job: usize, solved: bool, pools: &mut Pools) {
        if solved {
            let changed = self.changed_since(Mark::START);
            self.commit();
            let waits = |task: &usize| self.standings[*task].status == Status::Pipelined;
            let tasks = changed.iter().copied().filter(waits).collect();
            self.promises.push(Promise { job, tasks });
            let jobs: BTreeSet<usize> = changed.iter().map(|&task| self.tasks[task].job).collect();
            pools.waiting.update(self, jobs.iter().copied());
            pools.running.update(self, jobs.into_iter());
        }
    }

    /// The jobs that wait for a place, have all the pods that they need and pass `filter`.
    fn waiting(&self, filter: impl Fn(&Self, &View) -> bool) -> Vec<View> {
        let views = self.jobs.iter().map(|facts| &facts.view);
        views
            .filter(|view| {
                self.is_waiting(view) && self.gang(view).is_ready() && filter(self, view)
            })
            .cloned()
            .collect()
    }

    pub(crate) fn is_waiting(&self, view: &View) -> bool {
        view.all()
            .any(|task| self.standings[task].status == Status::Pending)
    }

    /// Whether the job has waited long enough to make others leave.
    fn may_evict(&self, view: &View) -> bool {
        let job = self.jobs[view.job].job;
        let since = job.last_eviction.unwrap_or_default().max(job.created);
        let is_due =
            job.preemption_delay == Duration::ZERO || since + job.preemption_delay <= self.now;
        is_due && !self.barred.contains(&view.job)
    }

    fn may_consolidate(&self, view: &View) -> bool {
        self.jobs[view.job].job.is_preemptible && self.may_evict(view)
    }

    /// Whether there is as much room in the whole cluster as the job needs.
    fn could_fit(&self, view: &View) -> bool {
        let tasks = self.gang(view).next(false);
        let demand = self.wants(&tasks)[crate::amounts::Resource::Gpu];
        let has: f64 = (0..self.nodes.len()).map(|node| self.free_gpus(node)).sum();
        demand <= has + 1e-6
    }

    /// Whether the job has something that may be taken from it.
    fn could_lose(&self, view: &View) -> bool {
        let mut tasks = view.all();
        self.jobs[view.job].job.is_preemptible
            && tasks.any(|task| self.standings[task].status.is_active_allocated())
    }

    /// The job without what was placed in this session; then it may lose no more than leaves it whole.
    pub(crate) fn as_victim(&self, view: &View) -> View {
        let mut victim = view.only(|task| !self.is_newly_placed(task));
        victim.keeps_core = view.all().any(|task| self.is_newly_placed(task));
        victim
    }

    /// Whether this session gave the task its place; what it decided it does not take back.
    fn is_newly_placed(&self, task: usize) -> bool {
        let before = self.opening[task].status;
        let now = self.standings[task].status;
        now.is_active_allocated() && !before.is_active_allocated()
    }

    fn reclaimer(&self, view: &View, tasks: &[usize]) -> Option<Reclaimer> {
        let facts = &self.jobs[view.job];
        Some(Reclaimer {
            queue: facts.queue?,
            is_preemptible: facts.job.is_preemptible,
            wants: self.wants(tasks),
        })
    }

    fn may_reclaim_from(&self, reclaimer: Reclaimer, victim: usize) -> bool {
        let Some(queue) = self.jobs[victim]
            .queue
            .filter(|&queue| queue != reclaimer.queue)
        else {
            return false;
        };
        let is_elastic = self.gang(&self.jobs[victim].view).is_elastic();
        let is_safe = self.is_safe_from_reclaim(reclaimer.queue, victim);
        is_candidate(&self.queues, reclaimer, queue)
            && min_runtime::is_candidate(is_safe, is_elastic)
    }

    fn may_preempt(&self, preemptor: usize, victim: usize) -> bool {
        let (job, other) = (&self.jobs[preemptor], &self.jobs[victim]);
        job.queue == other.queue
            && other.job.priority < job.job.priority
            && min_runtime::is_candidate(
                self.is_safe_from_preemption(victim),
                self.gang(&other.view).is_elastic(),
            )
    }

    fn is_safe_from_reclaim(&self, reclaimer: usize, victim: usize) -> bool {
        let facts = &self.jobs[victim];
        let Some(queue) = facts.queue else {
            return false;
        };
        let (mine, theirs) = (self.queues.path(reclaimer), self.queues.path(queue));
        let shared = mine.iter().zip(&theirs).take_while(|(l, r)| l == r).count();
        let path: Vec<_> = theirs
            .iter()
            .map(|&queue| {
                self.queue_facts(queue)
                    .and_then(|queue| queue.reclaim_min_runtime)
            })
            .collect();
        let settings = self.settings;
        let default = settings.reclaim_min_runtime;
        let minimum = against_reclaim(settings.resolution, &path, shared, default);
        is_protected(facts.last_start, minimum, self.now)
    }

    fn is_safe_from_preemption(&self, victim: usize) -> bool {
        let facts = &self.jobs[victim];
        let path: Vec<_> = facts
            .queue
            .map(|queue| self.queues.path(queue))
            .unwrap_or_default()
            .into_iter()
            .map(|queue| {
                self.queue_facts(queue)
                    .and_then(|queue| queue.preempt_min_runtime)
            })
            .collect();
        let minimum = along(&path, self.settings.preempt_min_runtime);
        is_protected(facts.last_start, minimum, self.now)
    }

    /// Whether every victim that is safe keeps what its pod sets must have.
    fn keeps_minimums(&self, batches: &[Batch], is_safe: impl Fn(&Self, usize) -> bool) -> bool {
        let mut by_set: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for batch in batches {
            for &task in &batch.tasks {
                *by_set.entry((batch.job, self.tasks[task].set)).or_default() += 1;
            }
        }
        by_set.into_iter().all(|((job, set), gone)| {
            let view = &self.jobs[job].view;
            let gang = self.gang(view);
            let active = view.tasks[set]
                .iter()
                .filter(|&&task| self.standings[task].status.is_active())
                .count();
            !gang.is_elastic() || keeps_minimum(is_safe(self, job), active, gone, view.minimum(set))
        })
    }

    /// What the victims lose, by queue: pods above their minimum one by one, the rest of a job at once.
    fn lost(&self, batches: &[Batch]) -> BTreeMap<usize, Vec<Amounts>> {
        let mut by_job: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for batch in batches {
            by_job.entry(batch.job).or_default().extend(&batch.tasks);
        }
        let mut lost: BTreeMap<usize, Vec<Amounts>> = BTreeMap::new();
        for (job, tasks) in by_job {
            let facts = &self.jobs[job];
            let Some(queue) = facts.queue else { continue };
            let mut seen: BTreeMap<usize, usize> = BTreeMap::new();
            let (mut core, mut elastic) = (Vec::new(), Vec::new());
            for task in tasks {
                let set = self.tasks[task].set;
                let count = seen.entry(set).or_default();
                *count += 1;
                let part = if *count <= facts.view.minimum(set) {
                    &mut core
                } else {
                    &mut elastic
                };
                part.extend(self.loss_of(task));
            }
            let losses = lost.entry(queue).or_default();
            losses.extend(elastic);
            if !core.is_empty() {
                losses.push(core.into_iter().sum());
            }
        }
        lost
    }

    /// What a victim loses, unless it only moves.
    fn loss_of(&self, task: usize) -> Option<Amounts> {
        let standing = &self.standings[task];
        let moves = standing.status.is_active_allocated();
        if moves && self.settings.consolidating_reclaim {
            return None;
        }
        standing.node.map(|node| self.charged(task, node))
    }
}
