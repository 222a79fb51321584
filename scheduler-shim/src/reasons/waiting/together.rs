//! Which pods of a job have to start together, and whether they are all there.

use std::collections::BTreeMap;

use apportion_policy::cluster::{Group, Job, PodSet, Status, Task};

use super::Books;

/// The one set of a group without parts.
const WHOLE: &str = "default";

/// A job's gang.
pub(crate) struct Together<'a> {
    sets: Vec<&'a PodSet>,
    /// Why it can't be tried at all: pods of it do not exist.
    pub(crate) unready: Option<String>,
    /// The waiting pods that it lacks to its minimum.
    next: Vec<&'a Task>,
}

impl<'a> Together<'a> {
    /// Of all pods of a job.
    pub(crate) fn of(books: &Books<'_>, job: &'a Job) -> Self {
        let sets = sets(&job.root);
        Self {
            unready: unready(job, &sets),
            next: next(books, job, &sets),
            sets,
        }
    }

    /// The sets of which none is the task's, if so.
    pub(crate) fn strange(&self, task: &Task) -> Option<String> {
        let names: Vec<&str> = self.sets.iter().map(|set| set.name.as_str()).collect();
        (!names.contains(&task.set.as_str())).then(|| names.join(", "))
    }

    /// The pods that have to start together with this one: what its gang lacks, or itself alone.
    pub(crate) fn with(&self, task: &'a Task) -> Vec<&'a Task> {
        if self.next.is_empty() {
            return vec![task];
        }
        self.next.clone()
    }
}

/// All pod sets of a tree.
fn sets(group: &Group) -> Vec<&PodSet> {
    let inner = group.groups.iter().flat_map(sets);
    group.sets.iter().chain(inner).collect()
}

/// Whether all members of all groups have to be satisfied.
fn needs_all(group: &Group) -> bool {
    group.min_members.is_none() && group.groups.iter().all(needs_all)
}

fn unready(job: &Job, sets: &[&PodSet]) -> Option<String> {
    let in_set = |set: &PodSet, status: fn(Status) -> bool| {
        let tasks = job.tasks.iter().filter(|task| task.set == set.name);
        tasks.filter(|task| status(task.status)).count()
    };
    let short = sets.iter().filter(|set| {
        let ready = in_set(set, |status| status.is_alive() && status != Status::Gated);
        ready < set.min_available && needs_all(&job.root)
    });
    let sentences = short.map(|set| {
        let exist = in_set(set, Status::is_alive);
        let gated = in_set(set, |status| status == Status::Gated);
        let (wanted, name) = (set.min_available, set.name.as_str());
        match name {
            WHOLE => format!(
                " Waiting for {wanted} pods, currently {exist} exist, {gated} are gated"
            ),
            name => format!(
                " Waiting for {wanted} pods for SubGroup {name}, currently {exist} exist, {gated} are gated."
            ),
        }
    });
    let sentences: String = sentences.collect();
    (!sentences.is_empty()).then(|| format!("Job is not ready for scheduling.{sentences}"))
}

/// The waiting pods that a gang lacks to its minimum.
fn next<'a>(books: &Books<'_>, job: &'a Job, sets: &[&PodSet]) -> Vec<&'a Task> {
    let mut waits: BTreeMap<&str, Vec<&Task>> = BTreeMap::new();
    let mut placed: BTreeMap<&str, usize> = BTreeMap::new();
    for one in &job.tasks {
        match books.status(one) {
            Status::Pending => waits.entry(&one.set).or_default().push(one),
            status if status.is_active_allocated() => *placed.entry(&one.set).or_default() += 1,
            _ => {}
        }
    }
    let mut next = Vec::new();
    for set in sets.iter().filter(|_| needs_all(&job.root)) {
        let placed = placed.get(set.name.as_str()).copied().unwrap_or(0);
        let lacks = set.min_available.saturating_sub(placed);
        let waiting = waits.get(set.name.as_str()).into_iter().flatten();
        next.extend(waiting.take(lacks).copied());
    }
    next
}
