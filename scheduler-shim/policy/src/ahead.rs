//! Looking ahead, so that nothing is evicted in vain.
//!
//! An evicted pod waits again. It may be served before the job that it was evicted for, and then the same
//! eviction would come back in every step. So the scheduler tries a plan before it carries it out.
//!
//! - The cautious plan: every job that makes others leave gets its place in the very next step. A job that
//!   would not get it is barred: it may not make others leave, and the plan is made again without it.
//! - A bold plan lets barred jobs evict, once a cautious plan has nothing left to do. Two waiting jobs can bar each other although each would be served in
//!   the end: one takes the place that was made for the other, which then makes room once more. So a bold plan
//!   is followed with cautious steps until nothing changes, and is taken if everybody who made others leave has
//!   a place then, or another with a claim has it. It is not taken if more bold plans would lead back to where it began.
//!
//! Without bold plans a job with a claim (a quota, a fair share, a priority in its queue) could wait for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::amounts::{Resource, UNLIMITED};
use crate::cluster::{Cluster, Status};
use crate::naming::Naming;
use crate::session::Session;
use crate::step::Action;

/// How many plans are tried before nobody may evict.
const PLANS: usize = 8;

/// How many bold plans are tried, and for how many times the effort of one action's search.
const BOLD_PLANS: usize = 8;
const BOLD_EFFORT: u64 = 4;

/// How many steps a bold plan may take until nothing changes.
const STEPS_TO_REST: usize = 8;

/// A job and those of its tasks and of its victims' that were promised a place.
#[derive(Clone, Debug)]
pub(crate) struct Promise {
    pub(crate) job: usize,
    pub(crate) tasks: Vec<usize>,
}

/// A job that may not make others leave in this step, because it would be in vain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBack {
    /// The job.
    pub job: String,
    /// The jobs that would get the place before it; none where too many plans were tried to say.
    pub by: Vec<String>,
}

/// Jobs that may not make others leave, and who would get the place before each; unknown for those that were never
/// tried.
pub(crate) type Barred = BTreeMap<usize, Option<BTreeSet<usize>>>;

/// Runs all actions on a cluster, with no eviction in vain.
#[must_use]
pub fn plan(now: Duration, cluster: &Cluster) -> Session<'_> {
    plan_aloud(now, cluster, |_, _| ())
}

/// The same; `done` is shown what has been decided after each action. Each plan that is tried begins with
/// [`Action::Allocate`]; the last is the one that is given.
pub fn plan_aloud<'a>(
    now: Duration,
    cluster: &'a Cluster,
    mut done: impl FnMut(&Session<'a>, Action),
) -> Session<'a> {
    let session = cautious(now, cluster, &mut done);
    let barred = session.caution.barred().clone();
    if barred.is_empty() || session.changes_something() {
        return session;
    }
    let mut left = BOLD_EFFORT * cluster.settings.search_effort;
    if let Some((session, end)) = bold(now, cluster, &barred, &mut left, &mut done)
        && !comes_back(now, cluster, end, &mut left)
    {
        return session;
    }
    run(now, cluster, Caution::Cautious(barred), &mut done)
}

/// The first bold plan that pays off, and the cluster when nothing changes any more; none once the effort that is
/// `left` is spent.
fn bold<'a>(
    now: Duration,
    cluster: &'a Cluster,
    barred: &Barred,
    left: &mut u64,
    done: &mut impl FnMut(&Session<'a>, Action),
) -> Option<(Session<'a>, Cluster)> {
    let tried = barred.iter().filter(|(_, by)| by.is_some());
    let without = |(job, _): (&usize, _)| {
        let mut others = barred.clone();
        others.remove(job);
        others
    };
    let plans = std::iter::once(Barred::new()).chain(tried.map(without));
    for barred in plans.take(BOLD_PLANS) {
        let session = run(now, cluster, Caution::Bold(barred), done);
        *left = left.saturating_sub(session.effort());
        if let Some(end) = session.pays_off(cluster, left) {
            return Some((session, end));
        }
        if *left == 0 {
            break;
        }
    }
    None
}

/// Whether bold plans lead from `at` back to where everybody runs where they run in `start`: then they would evict the
/// same pods for ever.
fn comes_back(now: Duration, start: &Cluster, mut at: Cluster, left: &mut u64) -> bool {
    let nothing = &mut |_: &Session<'_>, _| ();
    for _ in 0..BOLD_PLANS {
        let session = cautious(now, &at, nothing);
        let barred = session.caution.barred().clone();
        drop(session);
        let found = (!barred.is_empty()).then(|| bold(now, &at, &barred, left, nothing));
        let Some((_, end)) = found.flatten() else {
            return false;
        };
        at = end;
        if is_same(start, &at) {
            return true;
        }
    }
    true
}

/// Whether the same pods are on the same nodes.
fn is_same(left: &Cluster, right: &Cluster) -> bool {
    let tasks = |cluster: &Cluster| -> BTreeMap<String, Option<String>> {
        let tasks = cluster.jobs.iter().flat_map(|job| &job.tasks);
        tasks
            .map(|task| (task.name.clone(), task.node.clone()))
            .collect()
    };
    tasks(left) == tasks(right)
}

/// Which evictions a plan may have.
#[derive(Clone, Debug)]
pub(crate) enum Caution {
    /// Those for jobs that are not barred.
    Cautious(Barred),
    /// The same, but nobody only moves: nobody has a claim to another place for others.
    Bold(Barred),
}

impl Default for Caution {
    fn default() -> Self {
        Self::Cautious(Barred::new())
    }
}

impl Caution {
    /// The jobs for which nobody may be evicted.
    pub(crate) fn barred(&self) -> &Barred {
        let (Self::Cautious(barred) | Self::Bold(barred)) = self;
        barred
    }

    /// Whether jobs may be moved together.
    pub(crate) fn may_move(&self) -> bool {
        matches!(self, Self::Cautious(_))
    }
}

/// Runs all actions while some jobs may not make others leave.
fn run<'a>(
    now: Duration,
    cluster: &'a Cluster,
    caution: Caution,
    done: &mut impl FnMut(&Session<'a>, Action),
) -> Session<'a> {
    let mut session = Session::open(now, cluster);
    session.caution = caution;
    for action in Action::ALL {
        session.run(action);
        done(&session, action);
    }
    session
}

/// The cautious plan.
fn cautious<'a>(
    now: Duration,
    cluster: &'a Cluster,
    done: &mut impl FnMut(&Session<'a>, Action),
) -> Session<'a> {
    let mut barred = Barred::new();
    for _ in 0..PLANS {
        let session = run(now, cluster, Caution::Cautious(barred.clone()), done);
        let broken = session.broken_promises(cluster);
        if broken.is_empty() {
            return session;
        }
        barred.extend(broken);
    }
    for job in 0..cluster.jobs.len() {
        barred.entry(job).or_default();
    }
    run(now, cluster, Caution::Cautious(barred), done)
}

impl Session<'_> {
    /// The jobs that wait and may not make others leave in this step, by name.
    #[must_use]
    pub fn held_back(&self) -> Vec<HeldBack> {
        let name = |job: &usize| self.jobs[*job].job.name.clone();
        let barred = self.caution.barred().iter();
        let tried = barred.filter_map(|(job, by)| Some((job, by.as_ref()?)));
        tried
            .filter(|(job, _)| self.is_waiting(&self.jobs[**job].view))
            .map(|(job, by)| HeldBack {
                job: name(job),
                by: by.iter().map(name).collect(),
            })
            .collect()
    }

    /// The jobs that would not get in the next step what others are evicted for in this one, and who gets a place
    /// there then.
    fn broken_promises(&self, cluster: &Cluster) -> Barred {
        if self.promises.is_empty() {
            return Barred::new();
        }
        let next = self.carried_out(cluster);
        let mut ahead = Session::open(self.now, &next);
        ahead.run(Action::Allocate);
        // The same jobs and tasks have the same numbers, because they have the same names.
        let is_kept = |task: &usize| ahead.has_place(*task);
        let broken = self
            .promises
            .iter()
            .filter(|promise| !promise.tasks.iter().all(is_kept));
        broken
            .map(|promise| {
                let nodes = self.nodes_of(promise);
                let by = (0..ahead.tasks.len()).filter(|&task| {
                    let standing = &ahead.standings[task];
                    standing.status == Status::Binding && nodes.contains(&standing.node)
                });
                let by = by.map(|task| ahead.tasks[task].job);
                let others = by.filter(|&job| job != promise.job);
                (promise.job, Some(others.collect()))
            })
            .collect()
    }

    /// The cluster once nothing changes any more, if the evictions serve those for whom they are made, or others with a
    /// claim, then. It is given up, as if they did not, once the effort that is `left` is spent.
    fn pays_off(&self, cluster: &Cluster, left: &mut u64) -> Option<Cluster> {
        if self.promises.is_empty() {
            return None;
        }
        let mut at = self.carried_out(cluster);
        for _ in 0..STEPS_TO_REST {
            if *left == 0 {
                return None;
            }
            let mut spent = 0;
            let ahead = cautious(self.now, &at, &mut |session, action| {
                if action == Action::EvictStaleGangs {
                    spent += session.effort();
                }
            });
            *left = left.saturating_sub(spent);
            if !ahead.changes_something() {
                let opening = Session::open(self.now, cluster);
                let mut promises = self.promises.iter();
                let pays_off = promises.all(|promise| self.is_served(promise, &opening, &ahead));
                drop(ahead);
                return pays_off.then_some(at);
            }
            at = ahead.carried_out(&at);
        }
        None
    }

    /// Whether a job, or another with a claim, has at the end the room that is made for it now.
    fn is_served(&self, promise: &Promise, opening: &Session<'_>, end: &Session<'_>) -> bool {
        let nodes: BTreeSet<Option<usize>> = self.nodes_of(promise);
        let mut tasks = 0..self.tasks.len();
        tasks.any(|task| {
            let came = self.opening[task].status == Status::Pending && end.has_place(task);
            let job = self.tasks[task].job;
            let takes_room = || nodes.contains(&end.standings[task].node);
            came && (promise.tasks.contains(&task)
                || takes_room() && opening.has_claim(job, promise.job))
        })
    }

    fn nodes_of(&self, promise: &Promise) -> BTreeSet<Option<usize>> {
        let tasks = promise.tasks.iter();
        tasks.map(|&task| self.standings[task].node).collect()
    }

    /// Whether a task runs, or has a place that becomes free without anybody being evicted.
    fn has_place(&self, task: usize) -> bool {
        let status = self.standings[task].status;
        status.is_active_allocated() || status == Status::Pipelined
    }

    /// Whether a job that gets the room made for `other` had a right to it, too: its queues hold less than they may,
    /// or it is in the same queue and not of lower priority.
    fn has_claim(&self, job: usize, other: usize) -> bool {
        let (job, other) = (&self.jobs[job], &self.jobs[other]);
        let holds_less = |queue: usize| {
            let queue = self.queues.get(queue);
            let gpu = queue.of(Resource::Gpu);
            gpu.allocatable() == UNLIMITED || gpu.allocated < gpu.allocatable()
        };
        let is_below_share = job
            .queue
            .is_some_and(|queue| self.queues.upward(queue).all(holds_less));
        is_below_share || (job.queue == other.queue && job.job.priority >= other.job.priority)
    }

    /// Whether anything starts or ends; places that are only reserved change nothing.
    fn changes_something(&self) -> bool {
        let mut standings = self.opening.iter().zip(&self.standings);
        standings.any(|(before, after)| {
            let starts = after.status == Status::Binding && before.status != Status::Binding;
            let ends = before.status.is_allocated() && !after.status.is_allocated();
            starts || ends
        })
    }

    /// The cluster after the plan: what is bound runs, what is evicted waits.
    fn carried_out(&self, cluster: &Cluster) -> Cluster {
        let changed = (0..self.tasks.len())
            .filter(|&task| self.opening[task] != self.standings[task])
            .map(|task| (self.tasks[task].task.name.as_str(), task));
        let changed: BTreeMap<&str, usize> = changed.collect();
        let mut names = Naming::default();
        let mut next = cluster.clone();
        for task in next.jobs.iter_mut().flat_map(|job| &mut job.tasks) {
            let Some(&number) = changed.get(task.name.as_str()) else {
                continue;
            };
            let standing = &self.standings[number];
            let is_bound = standing.status == Status::Binding;
            let place = self.place_of(number, standing, &mut names);
            let place = place.filter(|_| is_bound);
            task.status = if is_bound {
                Status::Running
            } else {
                Status::Pending
            };
            task.zones.clear();
            match place {
                Some(place) => (task.node, task.on) = (Some(place.node), place.cards),
                None => (task.node, task.on) = (None, Vec::new()),
            }
        }
        next
    }
}
