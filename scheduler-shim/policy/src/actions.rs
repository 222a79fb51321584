//! The five actions of the policy, in the order in which they run.
//!
//! Each action goes through the jobs one by one, waiting jobs in the order of their queues. It commits its decision
//! about one job before it looks at the next, so a later job sees what an earlier one got.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use crate::allocate::allocate_job;
use crate::amounts::ResourceAmounts;
use crate::capacity_bound::CapacityBound;
use crate::charges::least_charge;
use crate::cluster::{KaiBehavior, StalenessGracePeriod, TaskStatus};
use crate::fit::is_within_quota;
use crate::gang::JobView;
use crate::job_order::JobOrder;
use crate::job_state::{could_lose, is_waiting};
use crate::jobs_by_queue::JobsByQueue;
use crate::plan_record::EvictionCommitment;
use crate::reclaimable::{Reclaimer, can_reclaim, reclaimable};
use crate::resource_vector::ResourceVector;
use crate::scenario::VictimBatch;
use crate::session::Session;
use crate::solve::{VictimSearch, solve};
use crate::state::undo_log::Checkpoint;
use crate::step::action::Action;
use crate::transitions::{evict, wait_instead};
use crate::tree::QueueTree;
use crate::victim_rules::{
    are_alike, could_give, is_safe_from_preemption, is_safe_from_reclaim, keeps_minimums, lost,
    may_preempt, may_reclaim_from, reclaimer_of,
};

/// The state of one run of an action that evicts.
struct ActionContext {
    waiting: JobsByQueue,
    running: JobsByQueue,
    /// Searches stop when the session's effort reaches this.
    until: u64,
    /// How many jobs may still search after the effort is used up.
    deferred: Cell<usize>,
    failed: FailedJobs,
}

impl ActionContext {
    /// After the effort is used up, `MOST_DEFERRED` more jobs may search, each with one hundredth of it.
    const LEAST_PART: u64 = 100;
    const MOST_DEFERRED: usize = 50;

    fn of(session: &Session<'_>) -> Self {
        Self {
            waiting: JobsByQueue::of(session, is_waiting),
            running: JobsByQueue::of(session, could_lose),
            until: session.effort() + session.facts().settings().search_effort,
            deferred: Cell::new(Self::MOST_DEFERRED),
            failed: FailedJobs::default(),
        }
    }

    /// The effort at which a search that starts now must stop.
    fn until(&self, session: &Session<'_>) -> u64 {
        let least = session.facts().settings().search_effort / Self::LEAST_PART;
        let enough = session.effort() + least;
        if enough <= self.until || self.deferred.get() == 0 {
            return self.until;
        }
        self.deferred.set(self.deferred.get() - 1);
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
        jobs.find(|&known| are_alike(session, known, job))
    }

    fn add(&mut self, job: usize) {
        self.0.push(job);
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// Runs one action for all jobs.
pub(crate) fn run(session: &mut Session<'_>, action: Action) {
    match action {
        Action::Allocate => allocate(session),
        Action::Consolidate => consolidate(session),
        Action::Reclaim => reclaim(session),
        Action::Preempt => preempt(session),
        Action::EvictStaleGangs => evict_stale_gangs(session),
    }
}

/// Places jobs on idle resources: nominated jobs, then the others. A job that needs resources that are being released
/// gets reservations.
pub(crate) fn allocate(session: &mut Session<'_>) {
    // Hardly ever is anybody nominated, and this runs in each plan that is tried.
    let mut tasks = session.facts().tasks().iter();
    if tasks.any(|facts| facts.task.is_nominated) {
        let job_order = JobOrder::of_jobs(session, waiting(session, is_nominated));
        allocate_in_order(session, job_order, is_nominated);
    }
    let all = waiting(session, |_, _| true);
    let job_order = JobOrder::of_waiting(session, Action::Allocate, all);
    allocate_in_order(session, job_order, is_waiting);
}

/// Whether a waiting pod of the job is nominated for a place.
fn is_nominated(session: &Session<'_>, view: &JobView) -> bool {
    view.all().any(|task| {
        session.facts().task(task).task.is_nominated
            && session.state().task(task).status == TaskStatus::Pending
    })
}

/// Places jobs, and those to which `applies` still after that again.
fn allocate_in_order(
    session: &mut Session<'_>,
    mut job_order: JobOrder<'_>,
    applies: fn(&Session<'_>, &JobView) -> bool,
) {
    let nodes: Vec<usize> = (0..session.facts().nodes().len()).collect();
    let mut failed = FailedJobs::default();
    while let Some(view) = job_order.pop(session) {
        if failed.has_like(session, view.job) {
            continue;
        }
        let mark = session.state().mark();
        let has_started = view
            .all()
            .any(|task| session.state().task(task).status.is_allocated());
        if !allocate_job(session, &view, &nodes, false) {
            session.roll_back(mark);
            failed.add(view.job);
            continue;
        }
        failed.clear();
        let must_wait = session.gang(&view).must_wait();
        if must_wait {
            wait_instead(session, mark);
        }
        session.commit();
        if !must_wait && !has_started {
            session.plan_mut().record_start(view.job);
        }
        if applies(session, &view) {
            job_order.push(session, view);
        }
    }
}

/// Moves running jobs together to make room for a waiting one.
pub(crate) fn consolidate(session: &mut Session<'_>) {
    if session.facts().settings().max_consolidated == Some(0)
        || !session.plan().caution().may_move()
    {
        return;
    }
    let jobs = waiting(session, may_consolidate);
    let mut job_order = JobOrder::of_waiting(session, Action::Consolidate, jobs);
    let mut context = ActionContext::of(session);
    session.plan_mut().set_moves_only(true);
    while let Some(view) = job_order.pop(session) {
        if context.failed.has_like(session, view.job) {
            continue;
        }
        if !could_fit(session, &view) {
            context.failed.add(view.job);
            continue;
        }
        let limit = session
            .facts()
            .settings()
            .max_consolidated
            .unwrap_or(usize::MAX);
        let job = view.job;
        let tried = Cell::new(0);
        let search = VictimSearch {
            job: view,
            victims: &context.running,
            may_leave: &|_, victim| {
                tried.set(tried.get() + 1);
                victim != job && tried.get() <= limit
            },
            may_lose: &|_, _| false,
            until: context.until(session),
            waiting: &context.waiting,
            // Consolidation only moves jobs: no victim may end up without a place.
            is_fair: &|session, _, batches| {
                let mut tasks = batches.iter().flat_map(|batch| &batch.tasks);
                tasks.all(|&task| session.state().task(task).status != TaskStatus::Releasing)
            },
        };
        let job = search.job.job;
        let solved = solve(session, &search);
        settle(session, job, solved, &mut context);
    }
    session.plan_mut().set_moves_only(false);
}

/// Evicts from queues that hold more than they may, for queues that hold less.
pub(crate) fn reclaim(session: &mut Session<'_>) {
    if !session.facts().settings().has_quotas {
        return;
    }
    let mut job_order = JobOrder::of_waiting(session, Action::Reclaim, waiting(session, may_evict));
    let mut context = ActionContext::of(session);
    while let Some(view) = job_order.pop(session) {
        let tasks = session.gang(&view).next(false);
        let Some(reclaimer) = reclaimer_of(session, &view, &tasks) else {
            continue;
        };
        if !can_reclaim(session.state().queues(), reclaimer) {
            continue;
        }
        if let Some(like) = context.failed.like(session, view.job) {
            if let Some(spared_victims) = session.plan().spared_victims().get(&like).cloned() {
                session.plan_mut().spare(view.job, spared_victims);
            }
            continue;
        }
        let spared_victims = RefCell::new(BTreeSet::new());
        let before = session.state().queues().clone();
        let job = view.clone();
        let running = &context.running;
        let search = VictimSearch {
            job: view,
            victims: &context.running,
            may_leave: &|session, victim| may_reclaim_from(session, reclaimer, victim),
            may_lose: &|session, victim| could_give(session, reclaimer, victim),
            until: context.until(session),
            waiting: &context.waiting,
            is_fair: &|session, tasks, batches| {
                let Some(reclaimer) = reclaimer_of(session, &job, tasks) else {
                    return false;
                };
                match judge_reclaim(session, &before, reclaimer, batches, running) {
                    ReclaimVerdict::Fair => true,
                    ReclaimVerdict::Unfair => false,
                    ReclaimVerdict::SparedVictims => {
                        let jobs = batches.iter().map(|batch| batch.job);
                        spared_victims.borrow_mut().extend(jobs);
                        false
                    }
                }
            },
        };
        let job = search.job.job;
        let solved = solve(session, &search);
        let spared_victims = spared_victims.take();
        if !solved && !spared_victims.is_empty() {
            session.plan_mut().spare(job, spared_victims);
        }
        settle(session, job, solved, &mut context);
    }
}

/// Whether a queue may take these victims.
enum ReclaimVerdict {
    Fair,
    Unfair,
    /// Only lesser jobs of the victims' queues make it unfair. The victims would evict those in turn, so a cautious
    /// plan spares them.
    SparedVictims,
}

/// Whether a reclaimer may take these victims, if the queues were like this before.
fn judge_reclaim(
    session: &Session<'_>,
    before: &QueueTree,
    reclaimer: Reclaimer,
    batches: &[VictimBatch],
    running: &JobsByQueue,
) -> ReclaimVerdict {
    let keeps_minimums = keeps_minimums(session, batches, |session, victim| {
        is_safe_from_reclaim(session, reclaimer.queue, victim)
    });
    if !keeps_minimums {
        return ReclaimVerdict::Unfair;
    }
    let multiplier = session.facts().settings().saturation_multiplier;
    let mut lost = lost(session, batches, running);
    if reclaimable(before, reclaimer, &lost, multiplier) {
        return ReclaimVerdict::Fair;
    }
    if !session.plan().caution().spares() {
        return ReclaimVerdict::Unfair;
    }
    for loss in lost.values_mut().flatten().flatten() {
        loss.behind = ResourceAmounts::default();
    }
    if reclaimable(before, reclaimer, &lost, multiplier) {
        ReclaimVerdict::SparedVictims
    } else {
        ReclaimVerdict::Unfair
    }
}

/// Evicts jobs of lower priority for a job of the same queue.
pub(crate) fn preempt(session: &mut Session<'_>) {
    let mut job_order = JobOrder::of_waiting(session, Action::Preempt, waiting(session, may_evict));
    let mut context = ActionContext::of(session);
    while let Some(view) = job_order.pop(session) {
        let tasks = session.gang(&view).next(false);
        let least = least_charge(session.facts(), &tasks);
        if !is_within_quota(session, view.job, least) || context.failed.has_like(session, view.job)
        {
            continue;
        }
        let preemptor = view.job;
        let search = VictimSearch {
            job: view,
            victims: &context.running,
            may_leave: &|session, victim| may_preempt(session, preemptor, victim),
            may_lose: &|_, _| true,
            until: context.until(session),
            waiting: &context.waiting,
            is_fair: &|session, _, batches| {
                keeps_minimums(session, batches, |session, victim| {
                    is_safe_from_preemption(session, victim)
                })
            },
        };
        let job = search.job.job;
        let solved = solve(session, &search);
        settle(session, job, solved, &mut context);
    }
}

/// Evicts the rest of gangs that had too few pods for too long.
pub(crate) fn evict_stale_gangs(session: &mut Session<'_>) {
    for job in 0..session.facts().jobs().len() {
        let view = session.facts().job(job).view.clone();
        let facts = session.facts().job(job).job;
        let needs_all_sets = session.facts().settings().goes(KaiBehavior::NeedsAllSets);
        if !session.gang(&view).is_stale(needs_all_sets) {
            continue;
        }
        let settings = session.facts().settings();
        if let StalenessGracePeriod::For(grace) = facts.grace.unwrap_or(settings.grace) {
            let now = session.facts().now();
            if now.saturating_sub(facts.stale_since.unwrap_or(now)) >= grace {
                evict_rest(session, &view);
            }
        }
        session.commit();
    }
}

fn evict_rest(session: &mut Session<'_>, view: &JobView) {
    for task in view.all() {
        if session.state().has_node(task) {
            evict(session, task);
        }
    }
}

/// Commits a solution and updates the lists of jobs, or records that there was none.
fn settle(session: &mut Session<'_>, job: usize, solved: bool, context: &mut ActionContext) {
    if !solved {
        context.failed.add(job);
        return;
    }
    context.failed.clear();
    let changed = session.state().changed_since(Checkpoint::LAST_COMMIT);
    session.commit();
    let mut tasks = Vec::new();
    let mut jobs = BTreeSet::new();
    let mut has_victims = false;
    for &task in &changed {
        let state = session.state().task(task);
        if state.status == TaskStatus::Pipelined {
            tasks.push(task);
        }
        has_victims |= state.status == TaskStatus::Releasing || state.leaves.is_some();
        jobs.insert(session.facts().task(task).job);
    }
    // Without a victim, no eviction can be in vain.
    if has_victims {
        let plan = session.plan_mut();
        plan.commit(EvictionCommitment { job, tasks });
    }
    context.waiting.update(session, jobs.iter().copied());
    context.running.update(session, jobs.into_iter());
}

/// The waiting jobs that have all the pods they need and pass `filter`.
fn waiting(session: &Session<'_>, filter: impl Fn(&Session<'_>, &JobView) -> bool) -> Vec<JobView> {
    let views = session.facts().jobs().iter().map(|facts| &facts.view);
    views
        .filter(|view| {
            is_waiting(session, view) && session.gang(view).is_ready() && filter(session, view)
        })
        .cloned()
        .collect()
}

/// Whether the job may evict others: its preemption delay is over and the plan does not bar it.
fn may_evict(session: &Session<'_>, view: &JobView) -> bool {
    let job = session.facts().job(view.job).job;
    let since = job.last_eviction.unwrap_or_default().max(job.created);
    let is_due = job.preemption_delay == Duration::ZERO
        || since + job.preemption_delay <= session.facts().now();
    is_due && !session.plan().caution().bars(view.job)
}

fn may_consolidate(session: &Session<'_>, view: &JobView) -> bool {
    session.facts().job(view.job).job.is_preemptible && may_evict(session, view)
}

/// Whether the whole cluster has as much free as the job needs.
fn could_fit(session: &Session<'_>, view: &JobView) -> bool {
    let tasks = session.gang(view).next(false);
    let bound = CapacityBound::of(session, &tasks);
    bound.is_some_and(|bound| bound.is_within(ResourceVector::default()))
}
