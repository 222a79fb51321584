//! Jobs of one kind by queue, in the order in which they are served.
//!
//! Sorted once for an action and updated after each decision, which changes a few of thousands of jobs.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::gang::JobView;
use crate::session::Session;

/// Selects the jobs of a pool.
pub(crate) type JobPredicate = fn(&Session<'_>, &JobView) -> bool;

#[derive(Clone, Debug)]
pub(crate) struct JobsByQueue {
    kind: JobPredicate,
    by_queue: BTreeMap<usize, Rc<Vec<usize>>>,
}

impl JobsByQueue {
    /// The selected jobs as of now.
    pub(crate) fn of(session: &Session<'_>, kind: JobPredicate) -> Self {
        let mut by_queue: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (job, facts) in session.facts().jobs().iter().enumerate() {
            if let (Some(queue), true) = (facts.queue, kind(session, &facts.view)) {
                by_queue.entry(queue).or_default().push(job);
            }
        }
        for jobs in by_queue.values_mut() {
            jobs.sort_by(|&left, &right| {
                order_jobs(
                    session,
                    &session.facts().job(left).view,
                    &session.facts().job(right).view,
                )
            });
        }
        let shared = by_queue.into_iter();
        let by_queue = shared.map(|(queue, jobs)| (queue, Rc::new(jobs))).collect();
        Self { kind, by_queue }
    }

    /// The jobs of each queue.
    pub(crate) fn by_queue(&self) -> impl Iterator<Item = (usize, &Rc<Vec<usize>>)> {
        self.by_queue.iter().map(|(&queue, jobs)| (queue, jobs))
    }

    /// The jobs of one queue.
    pub(crate) fn of_queue(&self, queue: usize) -> &[usize] {
        self.by_queue
            .get(&queue)
            .map_or(&[], |jobs| jobs.as_slice())
    }

    /// Removes changed jobs, or moves them to the position that they have now.
    pub(crate) fn update(&mut self, session: &Session<'_>, changed: impl Iterator<Item = usize>) {
        for job in changed {
            let facts = session.facts().job(job);
            let Some(queue) = facts.queue else {
                continue;
            };
            let jobs = Rc::make_mut(self.by_queue.entry(queue).or_default());
            if let Some(index) = jobs.iter().position(|known| *known == job) {
                jobs.remove(index);
            }
            if (self.kind)(session, &facts.view) {
                let index = jobs.partition_point(|&other| {
                    order_jobs(session, &session.facts().job(other).view, &facts.view).is_lt()
                });
                jobs.insert(index, job);
            }
        }
    }
}

/// The order of jobs in a queue: priority, progress towards the minimum, age, name.
pub(crate) fn order_jobs(session: &Session<'_>, left: &JobView, right: &JobView) -> Ordering {
    let (l, r) = (
        session.facts().job(left.job).job,
        session.facts().job(right.job).job,
    );
    let by_priority = if session.facts().settings().by_priority {
        r.priority.cmp(&l.priority)
    } else {
        Ordering::Equal
    };
    by_priority
        .then_with(|| {
            if session.facts().settings().minimum_first {
                session.gang(left).fill().cmp(&session.gang(right).fill())
            } else {
                Ordering::Equal
            }
        })
        .then_with(|| l.created.cmp(&r.created))
        .then_with(|| l.name.cmp(&r.name))
}
