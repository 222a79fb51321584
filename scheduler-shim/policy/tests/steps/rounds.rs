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

/// Carries out the decisions: bound pods run, evicted pods are recreated and wait.
pub(crate) fn carry_on(cluster: &mut Cluster, decisions: &[Decision]) {
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
            Decision::Reserve { .. } => {}
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
