//! Looking one step ahead, so that nothing is evicted in vain.
//!
//! Whoever is evicted waits again, and may be served before the job that it was evicted for; then the same
//! eviction would come back round after round. So a plan is tried before it is given: were it carried out,
//! would every place that was promised be taken by whom it was promised to? A job of which that is not true
//! may not make others leave in this step, and the plan is made anew without it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::cluster::{Cluster, Status};
use crate::naming::Naming;
use crate::session::Session;
use crate::step::Action;

/// How many plans are tried before nobody may evict.
const PLANS: usize = 8;

/// A job and those of its tasks and of its victims' that were promised a place.
#[derive(Clone, Debug)]
pub(crate) struct Promise {
    pub(crate) job: usize,
    pub(crate) tasks: Vec<usize>,
}

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
    let mut run = |session: &mut Session<'a>, actions: &[Action]| {
        for &action in actions {
            session.run(action);
            done(session, action);
        }
    };
    let mut barred = BTreeSet::new();
    for _ in 0..PLANS {
        let mut session = Session::open(now, cluster);
        session.barred.clone_from(&barred);
        run(&mut session, &Action::ALL);
        let broken = session.broken_promises(cluster);
        if broken.is_empty() {
            return session;
        }
        barred.extend(broken);
    }
    let mut session = Session::open(now, cluster);
    run(&mut session, &[Action::Allocate, Action::EvictStaleGangs]);
    session
}

impl Session<'_> {
    /// The jobs that would not get in the next step what others are evicted for in this one.
    fn broken_promises(&self, cluster: &Cluster) -> BTreeSet<usize> {
        if self.promises.is_empty() {
            return BTreeSet::new();
        }
        let next = self.carried_out(cluster);
        let mut ahead = Session::open(self.now, &next);
        ahead.run(Action::Allocate);
        // The same jobs and tasks have the same numbers, because they have the same names.
        let is_kept = |task: &usize| ahead.standings[*task].status.is_active_allocated();
        let broken = self
            .promises
            .iter()
            .filter(|promise| !promise.tasks.iter().all(is_kept));
        broken.map(|promise| promise.job).collect()
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
