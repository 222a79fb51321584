//! The five actions of the policy, in the order in which they run.
//!
//! Each action goes through the jobs one by one, waiting jobs in the order of their queues. It commits its decision
//! about one job before it looks at the next, so a later job sees what an earlier one got.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use crate::amounts::ResourceAmounts;
use crate::capacity_bound::CapacityBound;
use crate::cluster::{KaiBehavior, StalenessGracePeriod, TaskStatus};
use crate::gang::JobView;
use crate::job_order::JobOrder;
use crate::jobs_by_queue::JobsByQueue;
use crate::reclaimable::{can_reclaim, reclaimable};
use crate::session::caches::ResourceVector;
use crate::session::evictions::EvictionCommitment;
use crate::session::{Session, SessionCheckpoint};
use crate::solve::VictimSearch;
use crate::step::action::Action;

/// The state of one run of an action that evicts.
struct ActionContext {
    waiting: JobsByQueue,
    running: JobsByQueue,
    /// Searches stop when the session's effort reaches this.
    until: u64,
    /// How many jobs may still search after the effort is used up.
    late: Cell<usize>,
    hopeless: FailedJobs,
}

impl ActionContext {
    /// After the effort is used up, `LATE` more jobs may search, each with one hundredth of it.
    const LEAST_PART: u64 = 100;
    const LATE: usize = 50;

    fn of(session: &Session<'_>) -> Self {
        Self {
            waiting: JobsByQueue::of(session, |session, view| session.is_waiting(view)),
            running: JobsByQueue::of(session, |session, view| session.could_lose(view)),
            until: session.effort.get() + session.settings.search_effort,
            late: Cell::new(Self::LATE),
            hopeless: FailedJobs::default(),
        }
    }

    /// The effort at which a search that starts now must stop.
    fn until(&self, session: &Session<'_>) -> u64 {
        let least = session.settings.search_effort / Self::LEAST_PART;
        let enough = session.effort.get() + least;
        if enough <= self.until || self.late.get() == 0 {
            return self.until;
        }
        self.late.set(self.late.get() - 1);
        enough
    }
}

/// Jobs for which no solution was found since the last change.
#[derive(Default)]
struct FailedJobs(Vec<usize>);

impl FailedJobs {
    /// Whether a job that differs only in age and name has failed already.
    fn has_like(&self, session: &Session<'_>, job: usize) -> bool {
        self.like(session, job).is_some()
    }

    fn like(&self, session: &Session<'_>, job: usize) -> Option<usize> {
        let mut jobs = self.0.iter().copied();
        jobs.find(|&known| session.are_alike(known, job))
    }

    fn add(&mut self, job: usize) {
        self.0.push(job);
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

impl Session<'_> {
    /// Places jobs on idle resources. A job that needs resources that are being released gets reservations.
    pub(crate) fn allocate(&mut self) {
        let nodes: Vec<usize> = (0..self.nodes.len()).collect();
        let mut line = JobOrder::of_waiting(self, Action::Allocate, self.waiting(|_, _| true));
        let mut hopeless = FailedJobs::default();
        while let Some(view) = line.pop(self) {
            if hopeless.has_like(self, view.job) {
                continue;
            }
            let mark = self.mark();
            let has_started = view
                .all()
                .any(|task| self.task_states[task].status.is_allocated());
            if !self.allocate_job(&view, &nodes, false) {
                self.roll_back(mark);
                hopeless.add(view.job);
                continue;
            }
            hopeless.clear();
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

    /// Moves running jobs together to make room for a waiting one.
    pub(crate) fn consolidate(&mut self) {
        if self.settings.max_consolidated == Some(0) || !self.caution.may_move() {
            return;
        }
        let mut line = JobOrder::of_waiting(
            self,
            Action::Consolidate,
            self.waiting(Self::may_consolidate),
        );
        let mut turns = ActionContext::of(self);
        self.inter_pod_affinity.only_moves = true;
        while let Some(view) = line.pop(self) {
            if turns.hopeless.has_like(self, view.job) {
                continue;
            }
            if !self.could_fit(&view) {
                turns.hopeless.add(view.job);
                continue;
            }
            let limit = self.settings.max_consolidated.unwrap_or(usize::MAX);
            let job = view.job;
            let seen = Cell::new(0);
            let search = VictimSearch {
                job: view,
                victims: &turns.running,
                may_leave: &|_, victim| {
                    seen.set(seen.get() + 1);
                    victim != job && seen.get() <= limit
                },
                may_lose: &|_, _| false,
                until: turns.until(self),
                waiting: &turns.waiting,
                // Consolidation only moves jobs: no victim may end up without a place.
                is_fair: &|session, _, batches| {
                    let mut tasks = batches.iter().flat_map(|batch| &batch.tasks);
                    tasks.all(|&task| session.task_states[task].status != TaskStatus::Releasing)
                },
            };
            let (solved, job) = (self.solve(&search), search.job.job);
            self.settle(job, solved, &mut turns);
        }
        self.inter_pod_affinity.only_moves = false;
    }

    /// Evicts from queues that hold more than they may, for queues that hold less.
    pub(crate) fn reclaim(&mut self) {
        if !self.settings.has_quotas {
            return;
        }
        let mut line = JobOrder::of_waiting(self, Action::Reclaim, self.waiting(Self::may_evict));
        let mut turns = ActionContext::of(self);
        while let Some(view) = line.pop(self) {
            let tasks = self.gang(&view).next(false);
            let Some(reclaimer) = self.reclaimer(&view, &tasks) else {
                continue;
            };
            if !can_reclaim(&self.queues, reclaimer) {
                continue;
            }
            if let Some(like) = turns.hopeless.like(self, view.job) {
                if let Some(spared) = self.sparing.get(&like).cloned() {
                    self.sparing.insert(view.job, spared);
                }
                continue;
            }
            let spared = RefCell::new(BTreeSet::new());
            let before = self.queues.clone();
            let job = view.clone();
            let running = &turns.running;
            let search = VictimSearch {
                job: view,
                victims: &turns.running,
                may_leave: &|session, victim| session.may_reclaim_from(reclaimer, victim),
                may_lose: &|session, victim| session.could_give(reclaimer, victim),
                until: turns.until(self),
                waiting: &turns.waiting,
                is_fair: &|session, tasks, batches| {
                    let reclaimer = session.reclaimer(&job, tasks);
                    reclaimer.is_some_and(|reclaimer| {
                        let multiplier = session.settings.saturation_multiplier;
                        let is_safe = |session: &Session<'_>, victim| {
                            session.is_safe_from_reclaim(reclaimer.queue, victim)
                        };
                        if !session.keeps_minimums(batches, is_safe) {
                            return false;
                        }
                        let mut lost = session.lost(batches, running);
                        let is_fair = |lost: &_| reclaimable(&before, reclaimer, lost, multiplier);
                        if is_fair(&lost) {
                            return true;
                        }
                        // If only lesser jobs make it unfair, a cautious plan spares these victims: they would
                        // evict those in turn.
                        for loss in lost.values_mut().flatten().flatten() {
                            loss.behind = ResourceAmounts::default();
                        }
                        if session.caution.spares() && is_fair(&lost) {
                            let jobs = batches.iter().map(|batch| batch.job);
                            spared.borrow_mut().extend(jobs);
                        }
                        false
                    })
                },
            };
            let (solved, job) = (self.solve(&search), search.job.job);
            let spared = spared.take();
            if !solved && !spared.is_empty() {
                self.sparing.insert(job, spared);
            }
            self.settle(job, solved, &mut turns);
        }
    }

    /// Evicts jobs of lower priority for a job of the same queue.
    pub(crate) fn preempt(&mut self) {
        let mut line = JobOrder::of_waiting(self, Action::Preempt, self.waiting(Self::may_evict));
        let mut turns = ActionContext::of(self);
        while let Some(view) = line.pop(self) {
            let tasks = self.gang(&view).next(false);
            let least = self.least_charge(&tasks);
            if !self.is_within_quota(view.job, least) || turns.hopeless.has_like(self, view.job) {
                continue;
            }
            let preemptor = view.job;
            let search = VictimSearch {
                job: view,
                victims: &turns.running,
                may_leave: &|session, victim| session.may_preempt(preemptor, victim),
                may_lose: &|_, _| true,
                until: turns.until(self),
                waiting: &turns.waiting,
                is_fair: &|session, _, batches| {
                    session.keeps_minimums(batches, |session, victim| {
                        session.is_safe_from_preemption(victim)
                    })
                },
            };
            let (solved, job) = (self.solve(&search), search.job.job);
            self.settle(job, solved, &mut turns);
        }
    }

    /// Evicts the rest of gangs that had too few pods for too long.
    pub(crate) fn evict_stale_gangs(&mut self) {
        for job in 0..self.jobs.len() {
            let view = self.jobs[job].view.clone();
            let facts = self.jobs[job].job;
            let needs_all_sets = self.settings.goes(KaiBehavior::NeedsAllSets);
            if !self.gang(&view).is_stale(needs_all_sets) {
                continue;
            }
            let for_so_long = self
                .now
                .saturating_sub(facts.stale_since.unwrap_or(self.now));
            let is_over = match facts.grace.unwrap_or(self.settings.grace) {
                StalenessGracePeriod::For(grace) => for_so_long >= grace,
                StalenessGracePeriod::Forever => false,
            };
            let active = |task: &usize| self.task_states[*task].status.is_active_allocated();
            let tasks: Vec<usize> = view.all().filter(|task| is_over && active(task)).collect();
            for task in tasks {
                self.evict(task);
            }
            self.commit();
        }
    }

    /// Commits a solution and updates the lists of jobs, or records that there was none.
    fn settle(&mut self, job: usize, solved: bool, turns: &mut ActionContext) {
        if solved {
            turns.hopeless.clear();
            let changed = self.changed_since(SessionCheckpoint::START);
            self.commit();
            let waits = |task: &usize| self.task_states[*task].status == TaskStatus::Pipelined;
            let leaves = |task: &usize| {
                let state = &self.task_states[*task];
                state.status == TaskStatus::Releasing || state.leaves.is_some()
            };
            // Without a victim, no eviction can be in vain.
            if changed.iter().any(leaves) {
                let tasks = changed.iter().copied().filter(waits).collect();
                self.commitments.push(EvictionCommitment { job, tasks });
            }
            let jobs: BTreeSet<usize> = changed.iter().map(|&task| self.tasks[task].job).collect();
            turns.waiting.update(self, jobs.iter().copied());
            turns.running.update(self, jobs.into_iter());
        } else {
            turns.hopeless.add(job);
        }
    }

    /// The waiting jobs that have all the pods they need and pass `filter`.
    fn waiting(&self, filter: impl Fn(&Self, &JobView) -> bool) -> Vec<JobView> {
        let views = self.jobs.iter().map(|facts| &facts.view);
        views
            .filter(|view| {
                self.is_waiting(view) && self.gang(view).is_ready() && filter(self, view)
            })
            .cloned()
            .collect()
    }

    pub(crate) fn is_waiting(&self, view: &JobView) -> bool {
        view.all()
            .any(|task| self.task_states[task].status == TaskStatus::Pending)
    }

    /// Whether the job may evict others: its preemption delay is over and the plan does not bar it.
    fn may_evict(&self, view: &JobView) -> bool {
        let job = self.jobs[view.job].job;
        let since = job.last_eviction.unwrap_or_default().max(job.created);
        let is_due =
            job.preemption_delay == Duration::ZERO || since + job.preemption_delay <= self.now;
        is_due && !self.caution.bars(view.job)
    }

    fn may_consolidate(&self, view: &JobView) -> bool {
        self.jobs[view.job].job.is_preemptible && self.may_evict(view)
    }

    /// Whether the whole cluster has as much free as the job needs.
    fn could_fit(&self, view: &JobView) -> bool {
        let tasks = self.gang(view).next(false);
        let reach = CapacityBound::of(self, &tasks);
        reach.is_some_and(|reach| reach.is_within(ResourceVector::default()))
    }

    /// Whether the job has a pod that may be evicted.
    fn could_lose(&self, view: &JobView) -> bool {
        let mut tasks = view.all();
        self.jobs[view.job].job.is_preemptible
            && tasks.any(|task| {
                self.task_states[task].status.is_active_allocated() && !self.is_settled(task)
            })
    }

    /// The job without the pods that this session placed. If it has such pods, it may lose only what is above its
    /// minimums.
    pub(crate) fn as_victim(&self, view: &JobView) -> JobView {
        let mut victim = view.only(|task| !self.is_settled(task));
        victim.keeps_core = view.all().any(|task| self.is_settled(task));
        victim
    }

    /// Whether this session placed the task. The same session does not undo that.
    fn is_settled(&self, task: usize) -> bool {
        if self.settings.goes(KaiBehavior::TakesBack) {
            return false;
        }
        let before = self.initial_states[task].status;
        let now = self.task_states[task].status;
        now.is_active_allocated() && !before.is_active_allocated()
    }
}
