//! Job order: the next job of all queues, in the order in which the queues are served.
//!
//! At each level of the tree, queues are compared by what they hold and what their next job would take, so the
//! order is computed again for each job. Victims come in the reverse order: the queue that would be served last
//! gives first, and in it the job that would be placed last.
//!
//! As in KAI, an inner queue is compared by the next job of the child that had the last turn, even if another child
//! would be next now. Which child is next is decided when the queue gets its turn.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::amounts::ResourceAmounts;
use crate::charges::wants;
use crate::gang::JobView;
use crate::job_state::{as_victim, held_by, is_waiting};
use crate::jobs_by_queue::{JobsByQueue, order_jobs};
use crate::queue_order::{QueueChange, compare};
use crate::session::Session;
use crate::step::action::Action;

/// Whether a job may be considered as a victim.
pub(crate) type VictimFilter<'f> = dyn Fn(&Session<'_>, usize) -> bool + 'f;

/// Jobs in the order in which they are taken.
#[derive(Clone, Default)]
pub(crate) struct JobOrder<'f> {
    /// By leaf queue; the next job is the last of its list.
    leaves: BTreeMap<usize, Vec<JobView>>,
    /// Other jobs that only take their turn, by queue, and how many of them had it.
    bystanders: BTreeMap<usize, (Rc<Vec<usize>>, usize)>,
    /// The jobs of `leaves`, which are no bystanders.
    own: BTreeSet<usize>,
    /// Victims that are not in `leaves` yet, by queue, and how many of the list are left.
    victims: BTreeMap<usize, (Rc<Vec<usize>>, usize)>,
    /// The victim of each queue that was put into `leaves` last; when it is taken, the next follows.
    pulled: BTreeMap<usize, usize>,
    filter: Option<&'f VictimFilter<'f>>,
    /// The child of each inner queue that had the last turn, as long as it has jobs.
    last_served: BTreeMap<usize, usize>,
    /// What the victims taken so far hold, by queue.
    allocated: BTreeMap<usize, ResourceAmounts>,
}

impl<'f> JobOrder<'f> {
    /// The jobs in the order in which they are served.
    pub(crate) fn of_jobs(session: &Session<'_>, views: impl IntoIterator<Item = JobView>) -> Self {
        Self::default().filled(session, views)
    }

    /// The waiting jobs, of each queue as many as the action looks at.
    pub(crate) fn of_waiting(
        session: &Session<'_>,
        action: Action,
        views: impl IntoIterator<Item = JobView>,
    ) -> Self {
        let mut job_order = Self::of_jobs(session, views);
        if let Some(&depth) = session.facts().settings().queue_depth.get(&action) {
            for views in job_order.leaves.values_mut() {
                views.drain(..views.len().saturating_sub(depth));
            }
        }
        job_order
    }

    /// The victims of a pool that pass `filter`, in the order of eviction.
    pub(crate) fn of_victims(
        session: &Session<'_>,
        pool: &JobsByQueue,
        filter: &'f VictimFilter<'f>,
    ) -> Self {
        let all = pool
            .by_queue()
            .map(|(queue, jobs)| (queue, (Rc::clone(jobs), jobs.len())));
        let mut job_order = Self {
            victims: all.collect(),
            filter: Some(filter),
            ..Self::default()
        };
        for (queue, _) in pool.by_queue() {
            job_order.pull(session, queue);
        }
        job_order
    }

    /// The jobs in their order among all waiting jobs.
    pub(crate) fn among(
        session: &Session<'_>,
        views: impl IntoIterator<Item = JobView>,
        waiting: &JobsByQueue,
    ) -> Self {
        let mut job_order = Self::of_jobs(session, views);
        let own = job_order.leaves.values().flatten().map(|view| view.job);
        job_order.own = own.collect();
        let all = waiting.by_queue();
        job_order.bystanders = all
            .map(|(queue, jobs)| (queue, (Rc::clone(jobs), 0)))
            .collect();
        job_order
    }

    /// Puts the next victim of a queue into `leaves`.
    fn pull(&mut self, session: &Session<'_>, queue: usize) {
        self.pulled.remove(&queue);
        let Some((jobs, left)) = self.victims.get_mut(&queue) else {
            return;
        };
        while *left > 0 {
            *left -= 1;
            let job = jobs[*left];
            if self.filter.is_none_or(|filter| filter(session, job)) {
                self.pulled.insert(queue, job);
                self.push(session, as_victim(session, &session.facts().job(job).view));
                return;
            }
        }
    }

    fn filled(mut self, session: &Session<'_>, views: impl IntoIterator<Item = JobView>) -> Self {
        for view in views {
            if let Some(queue) = session.facts().job(view.job).queue {
                self.leaves.entry(queue).or_default().push(view);
            }
        }
        for views in self.leaves.values_mut() {
            views.sort_by(|left, right| order_jobs(session, right, left));
        }
        self
    }

    /// Puts a job back at the position that it has now.
    pub(crate) fn push(&mut self, session: &Session<'_>, view: JobView) {
        let Some(queue) = session.facts().job(view.job).queue else {
            return;
        };
        let is_of_victims = self.filter.is_some();
        let views = self.leaves.entry(queue).or_default();
        let index = views.partition_point(|other| {
            let order = order_jobs(session, other, &view);
            order
                == if is_of_victims {
                    Ordering::Less
                } else {
                    Ordering::Greater
                }
        });
        views.insert(index, view);
    }

    /// Takes the next job; bystanders have their turn in between.
    pub(crate) fn pop(&mut self, session: &Session<'_>) -> Option<JobView> {
        while let Some((&only, _)) = self.leaves.first_key_value() {
            // With a single queue, turns of bystanders change nothing.
            let is_only = self.leaves.len() == 1;
            let leaf = if is_only {
                only
            } else {
                self.pass_idle_bystanders(session);
                let leaf = self.next_leaf(session, session.state().queues().top(), false)?;
                self.record_served(session, leaf);
                leaf
            };
            if !is_only && self.is_bystander_served_next(session, leaf) {
                if let Some((_, passed)) = self.bystanders.get_mut(&leaf) {
                    *passed += 1;
                }
                self.forget_served(session, leaf);
                continue;
            }
            let views = self.leaves.get_mut(&leaf)?;
            let view = views.pop()?;
            if views.is_empty() {
                self.leaves.remove(&leaf);
            }
            if self.pulled.get(&leaf) == Some(&view.job) {
                self.pull(session, leaf);
            }
            self.forget_served(session, leaf);
            if self.filter.is_some() {
                let held = self.allocated.entry(leaf).or_default();
                *held = held.plus(held_by(session, &view));
            }
            return Some(view);
        }
        None
    }

    /// Skips bystanders at the head of their queues that no longer wait, or that are among the jobs themselves.
    fn pass_idle_bystanders(&mut self, session: &Session<'_>) {
        for (jobs, passed) in self.bystanders.values_mut() {
            while let Some(job) = jobs.get(*passed) {
                if !self.own.contains(job) && is_waiting(session, &session.facts().job(*job).view) {
                    break;
                }
                *passed += 1;
            }
        }
    }

    fn bystander<'s>(&self, session: &'s Session<'_>, leaf: usize) -> Option<&'s JobView> {
        let (jobs, passed) = self.bystanders.get(&leaf)?;
        jobs.get(*passed).map(|&job| &session.facts().job(job).view)
    }

    fn is_bystander_served_next(&self, session: &Session<'_>, leaf: usize) -> bool {
        let Some(other) = self.bystander(session, leaf) else {
            return false;
        };
        let own = self.leaves.get(&leaf).and_then(|views| views.last());
        own.is_none_or(|own| order_jobs(session, other, own) == Ordering::Less)
    }

    fn head<'s>(&'s self, session: &'s Session<'_>, leaf: usize) -> Option<&'s JobView> {
        if self.is_bystander_served_next(session, leaf) {
            return self.bystander(session, leaf);
        }
        self.leaves.get(&leaf)?.last()
    }

    /// Whether a queue or one below it has jobs that are not bystanders.
    fn has_own(&self, session: &Session<'_>, queue: usize) -> bool {
        let mut below = session.state().queues().children(queue).iter();
        self.leaves.contains_key(&queue) || below.any(|&below| self.has_own(session, below))
    }

    /// Records at every level which child has this turn.
    fn record_served(&mut self, session: &Session<'_>, leaf: usize) {
        for step in session.state().queues().path(leaf).windows(2) {
            self.last_served.insert(step[0], step[1]);
        }
    }

    /// Forgets the last turn of a queue that has no more jobs, and of those above that have none.
    fn forget_served(&mut self, session: &Session<'_>, leaf: usize) {
        let path = session.state().queues().path(leaf);
        for step in path.windows(2).rev() {
            if self.speaker(session, step[1]).is_some() {
                break;
            }
            self.last_served.remove(&step[0]);
        }
    }

    /// The leaf queue, among or below `members`, whose job is next.
    ///
    /// Queues that have only bystanders count only where queues further up compete for the turn.
    fn next_leaf(&self, session: &Session<'_>, members: &[usize], compete: bool) -> Option<usize> {
        let members: Vec<usize> = members
            .iter()
            .filter(|member| compete || self.has_own(session, **member))
            .copied()
            .collect();
        let next = match members.as_slice() {
            [only] => *only,
            several => self.best_of(session, several)?.0,
        };
        match self.head(session, next) {
            Some(_) => Some(next),
            None => {
                let compete = compete || members.len() > 1;
                self.next_leaf(session, session.state().queues().children(next), compete)
            }
        }
    }

    /// The next of `members`, and the leaf queue by whose job it is compared.
    fn best_of(&self, session: &Session<'_>, members: &[usize]) -> Option<(usize, usize)> {
        let candidates = members.iter().filter_map(|&member| {
            let speaker = self.speaker(session, member)?;
            let prospect = self.prospect(session, speaker, self.head(session, speaker)?);
            Some(((member, speaker), prospect))
        });
        let order = |left: &((usize, usize), QueueChange),
                     right: &((usize, usize), QueueChange)| {
            let (l, r) = (
                session.state().queues().get(left.0.0),
                session.state().queues().get(right.0.0),
            );
            if session.facts().settings().has_quotas {
                compare((l, left.1), (r, right.1), session.facts().total())
            } else {
                l.created.cmp(&r.created).then_with(|| l.uid.cmp(&r.uid))
            }
        };
        let next = if self.filter.is_some() {
            candidates.max_by(order)
        } else {
            candidates.min_by(order)
        };
        next.map(|(found, _)| found)
    }

    /// The leaf queue by whose next job a queue is compared.
    fn speaker(&self, session: &Session<'_>, queue: usize) -> Option<usize> {
        if self.head(session, queue).is_some() {
            return Some(queue);
        }
        let last = self
            .last_served
            .get(&queue)
            .and_then(|&below| self.speaker(session, below));
        last.or_else(|| {
            let below = session.state().queues().children(queue);
            self.best_of(session, below).map(|(_, speaker)| speaker)
        })
    }

    fn prospect(&self, session: &Session<'_>, leaf: usize, next: &JobView) -> QueueChange {
        if self.filter.is_some() {
            let allocated = self.allocated.get(&leaf).copied().unwrap_or_default();
            return QueueChange {
                victims: allocated.plus(held_by(session, next)),
                ..QueueChange::default()
            };
        }
        QueueChange {
            job: wants(session.facts(), &session.gang(next).next(false)),
            ..QueueChange::default()
        }
    }
}
