//! One pod in full: its request, the decision, all nodes and cards, its queues, and what would help.

use apportion_policy::cluster::Task;

use super::decided_cluster::DecidedCluster;
use super::pod_explanation::PodExplanation;
use super::queue_view;
use super::report::DecisionReport;
use super::unblock;
use super::unschedulable::{self, NodeView};
use apportion_model::snapshot::ClusterSnapshot;

/// Explains what the scheduler decides about one pod, and why.
pub fn explain(
    snapshot: &ClusterSnapshot<'_>,
    decided: &DecidedCluster<'_>,
    report: &DecisionReport,
    pod: &str,
) -> PodExplanation {
    let waits = report.waiting.iter().find(|one| one.pod == pod);
    let mut decisions = report
        .decisions
        .iter()
        .filter(|one| one.pod == pod)
        .map(ToString::to_string);
    let found = decided.task(pod);
    let decision = match (waits, decisions.next()) {
        (Some(waiting), _) => format!("waits because {}", waiting.message),
        (None, Some(first)) => decisions.fold(first, |all, one| format!("{all}; {one}")),
        (None, None) => match found {
            Some((_, task)) => format!("no change: {:?}", task.status).to_lowercase(),
            None => "belongs to another scheduler".to_owned(),
        },
    };
    let Some((job, task)) = found else {
        return PodExplanation {
            pod: pod.to_owned(),
            job: None,
            queue: None,
            priority: None,
            preemptible: None,
            asks: None,
            decision,
            resize: None,
            devices: None,
            nodes: Vec::new(),
            queues: Vec::new(),
            unblocked_if: Vec::new(),
            unblocked_if_alone: false,
        };
    };
    PodExplanation {
        pod: pod.to_owned(),
        job: Some(job.name.clone()),
        queue: Some(job.queue.clone()),
        priority: Some(job.priority),
        preemptible: Some(job.is_preemptible),
        asks: Some(unblock::ask(task)),
        decision,
        resize: None,
        devices: None,
        nodes: match waits {
            Some(_) => unschedulable::nodes(snapshot, decided, task),
            None => here(snapshot, decided, task),
        },
        queues: queue_view::with_ancestors(decided, &job.queue),
        unblocked_if_alone: unblock::is_large(decided),
        unblocked_if: match waits {
            Some(_) => unblock::changes(snapshot, decided, job, task),
            None => Vec::new(),
        },
    }
}

/// The node on which a pod is or will be.
fn here(
    snapshot: &ClusterSnapshot<'_>,
    decided: &DecidedCluster<'_>,
    task: &Task,
) -> Vec<NodeView> {
    let outcome = decided.outcomes.get(task.name.as_str());
    let placement = outcome.and_then(|outcome| outcome.placement.as_ref());
    let mut views = unschedulable::nodes(snapshot, decided, task);
    views.retain(|view| placement.is_some_and(|placement| placement.node == view.node));
    for view in &mut views {
        view.unmet_requirement = None;
        view.message = "the pod's node".to_owned();
    }
    views
}
