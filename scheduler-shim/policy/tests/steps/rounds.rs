//! What happens to a cluster between two steps.

use std::sync::Arc;

use apportion_policy::cluster::{Task, TaskStatus};
use apportion_policy::{Cluster, Decision};

fn task_of<'c>(cluster: &'c mut Cluster, name: &str) -> &'c mut Task {
    let tasks = cluster
        .jobs
        .iter_mut()
        .flat_map(|job| &mut Arc::make_mut(job).tasks);
    tasks.into_iter().find(|task| task.name == name).unwrap()
}

/// Whether nothing starts or ends.
pub(crate) fn are_only_reservations(decisions: &[Decision]) -> bool {
    let mut decisions = decisions.iter();
    decisions.all(|one| matches!(one, Decision::Reserve { .. }))
}

/// Carries out the decisions: bound pods run, evicted pods are recreated and wait, nominated ones stay so while their
/// places are reserved.
pub(crate) fn carry_on(cluster: &mut Cluster, decisions: &[Decision]) {
    for job in &mut cluster.jobs {
        if job.tasks.iter().any(|task| task.is_nominated) {
            let tasks = Arc::make_mut(job).tasks.iter_mut();
            tasks.for_each(|task| task.is_nominated = false);
        }
    }
    for decision in decisions {
        match decision {
            Decision::Evict { task, .. } => {
                let task = task_of(cluster, task);
                task.status = TaskStatus::Pending;
                task.node = None;
                task.on.clear();
            }
            Decision::Bind {
                task, placement, ..
            } => {
                let task = task_of(cluster, task);
                task.status = TaskStatus::Running;
                task.node = Some(placement.node.clone());
                task.on.clone_from(&placement.cards);
            }
            Decision::Reserve {
                task, is_nominated, ..
            } => task_of(cluster, task).is_nominated = *is_nominated,
        }
    }
}

pub(crate) fn shuffled(cluster: &Cluster, seed: usize) -> Cluster {
    let mut other = cluster.clone();
    let by = |length: usize| if length == 0 { 0 } else { seed % length };
    let (nodes, queues, jobs) = (
        by(other.nodes.len()),
        by(other.queues.len()),
        by(other.jobs.len()),
    );
    other.nodes.rotate_left(nodes);
    other.queues.rotate_left(queues);
    other.jobs.rotate_left(jobs);
    other.jobs.reverse();
    for job in &mut other.jobs {
        Arc::make_mut(job).tasks.reverse();
    }
    other
}
