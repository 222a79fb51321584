//! Which pods of a job must start together, and whether they all exist.
//!
//! A group may need only some of its members, and so may each group in it. What it lacks is counted as the policy
//! does: the pods without which too few members would be satisfied.

use std::collections::BTreeMap;

use apportion_policy::cluster::{Job, PodSet, SubGroupSet, Task, TaskStatus};

use crate::decided_cluster::DecidedCluster;

/// The only set of a group without subgroups.
const WHOLE: &str = "default";

pub(crate) struct WaitingGang<'a> {
    job: &'a Job,
    sets: Vec<&'a PodSet>,
    /// Why it can't be tried: some of its pods do not exist.
    pub unready: Option<String>,
    /// The waiting pods by set.
    waits: BTreeMap<&'a str, Vec<&'a Task>>,
    /// How many pods have a place, by set.
    placed: BTreeMap<&'a str, usize>,
    /// The waiting pods that are missing to its minimum.
    next: Vec<&'a Task>,
}

impl<'a> WaitingGang<'a> {
    /// The gang of a job.
    pub(crate) fn of(decided: &DecidedCluster<'_>, job: &'a Job) -> Self {
        let sets = sets(&job.root);
        let mut waits: BTreeMap<&str, Vec<&Task>> = BTreeMap::new();
        let mut placed: BTreeMap<&str, usize> = BTreeMap::new();
        for one in &job.tasks {
            match decided.status(one) {
                TaskStatus::Pending => waits.entry(&one.set).or_default().push(one),
                status if status.is_active_allocated() => *placed.entry(&one.set).or_default() += 1,
                _ => {}
            }
        }
        let mut together = Self {
            job,
            unready: unready(job, &sets),
            sets,
            waits,
            placed,
            next: Vec::new(),
        };
        together.next = together.lacking(&job.root).unwrap_or_default();
        together
    }

    /// The names of all sets, if the task is in none of them.
    pub(crate) fn strange(&self, task: &Task) -> Option<String> {
        let names: Vec<&str> = self.sets.iter().map(|set| set.name.as_str()).collect();
        (!names.contains(&task.set.as_str())).then(|| names.join(", "))
    }

    /// The pods that must start together with this one: what its gang lacks, else what its subgroup lacks, else
    /// itself alone.
    pub(crate) fn with(&self, task: &'a Task) -> Vec<&'a Task> {
        if !self.next.is_empty() {
            return self.next.clone();
        }
        let of_part = self.lacking_around(&self.job.root, &task.set);
        if of_part.is_empty() {
            vec![task]
        } else {
            of_part
        }
    }

    /// What a set's outermost subgroup lacks that lacks anything.
    fn lacking_around(&self, group: &SubGroupSet, set: &str) -> Vec<&'a Task> {
        let of_group = self.lacking(group).unwrap_or_default();
        if !of_group.is_empty() {
            return of_group;
        }
        if let Some(own) = group.sets.iter().find(|one| one.name == set) {
            return self.lacking_of_set(own).unwrap_or_default();
        }
        let inner = group
            .groups
            .iter()
            .find(|inner| sets(inner).iter().any(|one| one.name == set));
        inner.map_or_else(Vec::new, |inner| self.lacking_around(inner, set))
    }

    /// The waiting pods that a group lacks; `None` if too few exist.
    fn lacking(&self, group: &SubGroupSet) -> Option<Vec<&'a Task>> {
        let inner = group.groups.iter().map(|inner| self.lacking(inner));
        let own = group.sets.iter().map(|set| self.lacking_of_set(set));
        let mut members: Vec<Option<Vec<&Task>>> = inner.chain(own).collect();
        let wanted = wanted(group);
        if wanted > members.len() {
            return None;
        }
        members.sort_by_key(|lacking| lacking.as_ref().map_or(usize::MAX, Vec::len));
        let first: Option<Vec<Vec<&Task>>> = members.into_iter().take(wanted).collect();
        Some(first?.concat())
    }

    fn lacking_of_set(&self, set: &PodSet) -> Option<Vec<&'a Task>> {
        let placed = self.placed.get(set.name.as_str()).copied().unwrap_or(0);
        let unmet_requirement = set.min_available.saturating_sub(placed);
        let waiting = self.waits.get(set.name.as_str()).map_or(&[][..], |all| all);
        waiting.get(..unmet_requirement).map(<[&Task]>::to_vec)
    }
}

/// All pod sets of a tree.
fn sets(group: &SubGroupSet) -> Vec<&PodSet> {
    let inner = group.groups.iter().flat_map(sets);
    group.sets.iter().chain(inner).collect()
}

/// How many members of a group have to be satisfied.
fn wanted(group: &SubGroupSet) -> usize {
    let all = group.groups.len() + group.sets.len();
    group.min_members.unwrap_or(all)
}

/// How many pods of a set exist, and how many of those are gated.
fn counts(job: &Job, set: &PodSet) -> (usize, usize) {
    let tasks = || job.tasks.iter().filter(|task| task.set == set.name);
    let exist = tasks().filter(|task| task.status.is_alive()).count();
    let gated = tasks()
        .filter(|task| task.status == TaskStatus::Gated)
        .count();
    (exist, gated)
}

/// Whether as many pods exist as a group needs.
fn is_ready(job: &Job, group: &SubGroupSet) -> bool {
    let inner = group.groups.iter().filter(|inner| is_ready(job, inner));
    let own = group.sets.iter().filter(|set| !is_short(job, set));
    inner.count() + own.count() >= wanted(group)
}

fn is_short(job: &Job, set: &PodSet) -> bool {
    let (exist, gated) = counts(job, set);
    exist.saturating_sub(gated) < set.min_available
}

fn unready(job: &Job, sets: &[&PodSet]) -> Option<String> {
    if is_ready(job, &job.root) {
        return None;
    }
    let short = sets.iter().filter(|set| is_short(job, set));
    let messages = short.map(|set| {
        let (exist, gated) = counts(job, set);
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
    let messages: String = messages.collect();
    Some(format!("Job is not ready for scheduling.{messages}"))
}
