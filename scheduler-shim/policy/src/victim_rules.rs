//! Which jobs may be evicted for which, and whether an outcome is fair to the victims.

use std::collections::BTreeMap;

use crate::amounts::ResourceAmounts;
use crate::cluster::TaskStatus;
use crate::gang::JobView;
use crate::jobs_by_queue::JobsByQueue;
use crate::min_runtime::{self, against_reclaim, along, is_protected, keeps_minimum};
use crate::reclaimable::{
    Losses, QueueLoss, Reclaimer, exceeds_fair_share, guarantees_quota, is_candidate,
};
use crate::scenario::VictimBatch;
use crate::session::Session;

impl Session<'_> {
    pub(crate) fn reclaimer(&self, view: &JobView, tasks: &[usize]) -> Option<Reclaimer> {
        let facts = &self.jobs[view.job];
        Some(Reclaimer {
            queue: facts.queue?,
            is_preemptible: facts.job.is_preemptible,
            wants: self.wants(tasks),
        })
    }

    pub(crate) fn may_reclaim_from(&self, reclaimer: Reclaimer, victim: usize) -> bool {
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

    /// Whether the victim's queue holds so much that a reclaimer could take something, however little.
    pub(crate) fn could_give(&self, reclaimer: Reclaimer, victim: usize) -> bool {
        self.jobs[victim].queue.is_some_and(|queue| {
            let (taker, loser) = self.queues.parting(reclaimer.queue, queue);
            let (taker, loser) = (self.queues.get(taker), self.queues.get(loser));
            let has = loser.allocated();
            exceeds_fair_share(loser, has)
                || guarantees_quota(taker, ResourceAmounts::default(), loser, has)
        })
    }

    pub(crate) fn may_preempt(&self, preemptor: usize, victim: usize) -> bool {
        let (job, other) = (&self.jobs[preemptor], &self.jobs[victim]);
        job.queue == other.queue
            && other.job.priority < job.job.priority
            && min_runtime::is_candidate(
                self.is_safe_from_preemption(victim),
                self.gang(&other.view).is_elastic(),
            )
    }

    pub(crate) fn is_safe_from_reclaim(&self, reclaimer: usize, victim: usize) -> bool {
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

    pub(crate) fn is_safe_from_preemption(&self, victim: usize) -> bool {
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

    /// Whether every protected victim keeps the minimums of its pod sets.
    pub(crate) fn keeps_minimums(
        &self,
        batches: &[VictimBatch],
        is_safe: impl Fn(&Self, usize) -> bool,
    ) -> bool {
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
                .filter(|&&task| self.task_states[task].status.is_active())
                .count();
            !gang.is_elastic() || keeps_minimum(is_safe(self, job), active, gone, view.minimum(set))
        })
    }

    /// What the victims lose, by queue and job: pods above the minimum one by one, the rest of a job at once.
    pub(crate) fn lost(&self, batches: &[VictimBatch], running: &JobsByQueue) -> Losses {
        let mut by_job: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for batch in batches {
            by_job.entry(batch.job).or_default().extend(&batch.tasks);
        }
        let mut lost = Losses::new();
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
            if !core.is_empty() {
                elastic.push(core.into_iter().sum());
            }
            if elastic.is_empty() {
                continue;
            }
            let behind = self.behind(job, running);
            let losses = elastic
                .into_iter()
                .map(|amounts| QueueLoss { amounts, behind });
            lost.entry(queue).or_default().push(losses.collect());
        }
        lost
    }

    /// What jobs of lower priority than a victim hold in its queue.
    fn behind(&self, victim: usize, running: &JobsByQueue) -> ResourceAmounts {
        let facts = &self.jobs[victim];
        if !self.settings.by_priority || !self.caution.spares() {
            return ResourceAmounts::default();
        }
        let jobs = facts.queue.map(|queue| running.of_queue(queue));
        let lower = jobs
            .into_iter()
            .flatten()
            .rev()
            .take_while(|&&job| self.jobs[job].job.priority < facts.job.priority);
        let tasks = lower.flat_map(|&job| self.jobs[job].view.all());
        let held = tasks.filter(|&task| self.task_states[task].status.is_active_allocated());
        held.filter_map(|task| self.charge(task)).sum()
    }

    /// Whether two jobs ask for the same under the same conditions.
    pub(crate) fn are_alike(&self, left: usize, right: usize) -> bool {
        let (l, r) = (&self.jobs[left], &self.jobs[right]);
        let waits = |task: usize| self.task_states[task].status == TaskStatus::Pending;
        let pairs = l.view.all().zip(r.view.all());
        l.queue == r.queue
            && l.job.priority == r.job.priority
            && l.job.is_preemptible == r.job.is_preemptible
            && l.job.root == r.job.root
            && l.view.all().count() == r.view.all().count()
            && pairs.into_iter().all(|(left, right)| {
                let (one, other) = (self.tasks[left].task, self.tasks[right].task);
                waits(left)
                    && waits(right)
                    && one.claims.is_empty()
                    && other.claims.is_empty()
                    && self.tasks[left].set == self.tasks[right].set
                    && self.asks_alike(left, right)
                    && one.is_guaranteed == other.is_guaranteed
                    && one.containers == other.containers
                    && one.labels == other.labels
                    && one.near == other.near
                    && one.apart == other.apart
                    && one.even == other.even
                    && one.prefers == other.prefers
            })
    }

    /// What a victim loses, unless it only moves.
    fn loss_of(&self, task: usize) -> Option<ResourceAmounts> {
        let state = &self.task_states[task];
        let moves = state.status.is_active_allocated();
        if moves && self.settings.consolidating_reclaim {
            return None;
        }
        self.charge(task)
    }
}
