//! Turns Pod objects into the policy's tasks.

use apportion_abi::names::LABEL_TASK_PRIORITY;
use apportion_groups::ObjectView;
use apportion_policy::cluster::{Task, TaskGpuRequest};

use super::object_warnings::ObjectWarnings;
use super::{pod_affinity, pod_zones, pods, requests, resize};

/// Labels of pods that start before the others of their set: masters and launchers, and heads of Ray.
const LEADERS: &[(&str, &str)] = &[
    ("training.kubeflow.org/job-role", "master"),
    ("training.kubeflow.org/job-role", "launcher"),
    ("ray.io/node-type", "head"),
];

/// The task of a pod, without its set and its requirements about nodes.
pub(crate) fn task(
    pod: ObjectView<'_>,
    cards: TaskGpuRequest,
    warnings: &mut ObjectWarnings,
) -> Task {
    let is_guaranteed = pod_zones::is_guaranteed(pod);
    let mut task = Task {
        name: pods::name(pod),
        status: pods::status(pod),
        node: pods::node(pod).map(str::to_owned),
        on: pods::groups(pod),
        cards,
        limit: resize::limit_given(pod),
        claims: pods::claims(pod),
        is_guaranteed,
        containers: pod_zones::containers(pod, is_guaranteed),
        zones: pod_zones::written(pod),
        cpu_millis: requests::total(pod, "cpu").millis(),
        memory: requests::total(pod, "memory").units(),
        leads: LEADERS
            .iter()
            .any(|(label, value)| pod.label(label) == Some(value)),
        is_nominated: pods::nominated_node(pod).is_some(),
        order: pod
            .label(LABEL_TASK_PRIORITY)
            .and_then(|text| text.parse().ok()),
        ..Task::default()
    };
    pod_affinity::enter(pod, &mut task, warnings);
    task
}
