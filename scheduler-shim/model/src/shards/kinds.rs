//! Keeps pods with GPUs and all others on nodes labelled for them: KAI's `restrict-node-scheduling`.
//!
//! A node without either label takes no pod, and its GPUs count for nobody's share.

use std::sync::Arc;

use apportion_policy::Cluster;
use apportion_policy::cluster::{Node, Task, TaskGpuRequest};

/// KAI's labels, of which only the presence counts.
const FOR_GPUS: &str = "node-role.kubernetes.io/gpu-worker";
const FOR_OTHERS: &str = "node-role.kubernetes.io/cpu-worker";
/// Internal labels that pods require instead, because the values of KAI's labels say nothing. No node can have them
/// itself.
const TAKES_GPU_PODS: &str = "(takes pods with GPUs)";
const TAKES_OTHER_PODS: &str = "(takes other pods)";
const YES: &str = "yes";

/// Restricts pods to nodes with the label of their kind.
pub(super) fn keep_apart(cluster: &mut Cluster) {
    for node in &mut cluster.nodes {
        for (label, mark) in [(FOR_GPUS, TAKES_GPU_PODS), (FOR_OTHERS, TAKES_OTHER_PODS)] {
            if node.labels.contains_key(label) {
                node.set_label(mark, YES);
            }
        }
    }
    let tasks = (cluster.jobs.iter_mut()).flat_map(|job| &mut Arc::make_mut(job).tasks);
    for task in tasks {
        let mark = if wants_gpus(task) {
            TAKES_GPU_PODS
        } else {
            TAKES_OTHER_PODS
        };
        let wanted = (mark.to_owned(), vec![YES.to_owned()]);
        Arc::make_mut(&mut task.node_affinity).push(wanted);
    }
}

/// Why a node does not take a pod: the label that it lacks.
pub fn refused(task: &Task, node: &Node) -> Option<String> {
    let mut wished = task.node_affinity.iter().map(|(mark, _)| mark.as_str());
    let label = wished
        .find(|mark| !node.labels.contains_key(*mark))
        .and_then(|mark| match mark {
            TAKES_GPU_PODS => Some(FOR_GPUS),
            TAKES_OTHER_PODS => Some(FOR_OTHERS),
            _ => None,
        })?;
    Some(format!(
        "has no label {label}, for which restrict-node-scheduling asks"
    ))
}

fn wants_gpus(task: &Task) -> bool {
    !matches!(task.cards, TaskGpuRequest::None) || !task.claims.is_empty()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apportion_policy::cluster::Job;

    use super::*;

    #[test]
    fn a_pod_asks_for_a_node_of_its_kind_whatever_the_label_says() {
        let node = |name: &str, label: &str| Node {
            name: name.to_owned(),
            labels: Arc::new([(label.to_owned(), String::new())].into_iter().collect()),
            ..Node::default()
        };
        let task = |cards| Task {
            cards,
            ..Task::default()
        };
        let mut cluster = Cluster {
            nodes: vec![
                node("g", FOR_GPUS),
                node("c", FOR_OTHERS),
                node("n", "other"),
            ],
            jobs: vec![Arc::new(Job {
                tasks: vec![task(TaskGpuRequest::Whole(1)), task(TaskGpuRequest::None)],
                ..Job::default()
            })],
            ..Cluster::default()
        };
        keep_apart(&mut cluster);
        let takers = |task: &Task| -> Vec<String> {
            let (label, values) = &task.node_affinity[0];
            let nodes = cluster
                .nodes
                .iter()
                .filter(|node| node.labels.get(label).is_some_and(|is| values.contains(is)));
            nodes.map(|node| node.name.clone()).collect()
        };
        assert_eq!(takers(&cluster.jobs[0].tasks[0]), ["g"]);
        assert_eq!(takers(&cluster.jobs[0].tasks[1]), ["c"]);
        let task = &cluster.jobs[0].tasks[0];
        assert_eq!(refused(task, &cluster.nodes[0]), None);
        let why = refused(task, &cluster.nodes[1]).expect("it is for other pods");
        assert!(why.contains(FOR_GPUS), "{why}");
    }
}
