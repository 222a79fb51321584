//! Kinds without a rule of their own, row by row: how many pods must start together, and the priority class.

use serde_json::{Value, json};

use crate::case::{GroupingCase, class, owner};

/// Owners with a minimum of one pod, and the priority class of their groups.
const PLAIN: &[(&str, &str, &str)] = &[
    ("v1", "ReplicationController", "train"),
    ("apps/v1", "ReplicaSet", "train"),
    ("apps/v1", "StatefulSet", "train"),
    ("apps/v1", "DaemonSet", "train"),
    ("batch/v1", "Job", "train"),
    ("kubeflow.org/v1beta1", "Notebook", "build"),
    ("kubeflow.org/v1alpha1", "ScheduledWorkflow", "train"),
    ("machinelearning.seldon.io/v1", "SeldonDeployment", "train"),
    (
        "machinelearning.seldon.io/v1alpha2",
        "SeldonDeployment",
        "train",
    ),
    ("kubevirt.io/v1", "VirtualMachineInstance", "train"),
    ("workspace.devfile.io/v1alpha2", "DevWorkspace", "train"),
    ("tekton.dev/v1", "PipelineRun", "train"),
    ("tekton.dev/v1", "TaskRun", "train"),
    ("egx.nvidia.io/v1", "SPOTRequest", "inference"),
    ("example.org/v1", "Unheard", "train"),
];

/// Owners that leave the decision to what is below them.
const WRAPPERS: &[(&str, &str)] = &[
    ("argoproj.io/v1alpha1", "Workflow"),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    ("nvidia.com/v1alpha1", "DynamoGraphDeployment"),
    ("nvidia.com/v1beta1", "DynamoGraphDeployment"),
    ("run.ai/v2alpha1", "TrainingWorkload"),
    ("run.ai/v2alpha1", "InteractiveWorkload"),
    ("run.ai/v2alpha1", "InferenceWorkload"),
    ("run.ai/v2alpha1", "DistributedWorkload"),
    ("run.ai/v2alpha1", "DistributedInferenceWorkload"),
];

#[test]
fn one_pod_is_enough_for_most_kinds_and_the_kind_says_how_important_it_is() {
    for (version, kind, priority) in PLAIN {
        let spec = json!({"replicas": 4, "parallelism": 4});
        let group = GroupingCase::of(owner(version, kind, spec)).group();
        let found = (group.min_member, group.priority_class.as_str());
        assert_eq!(found, (1, *priority), "{kind}");
        assert_eq!(
            (group.name.as_str(), group.owner.kind.as_str()),
            ("pg-o-7", *kind)
        );
        assert!(group.sub_groups.is_empty(), "{kind}");
    }
}

#[test]
fn whatever_wraps_a_job_the_job_decides_and_the_wrapper_names_the_queue() {
    for (version, kind) in WRAPPERS {
        let mut job = owner("batch/v1", "Job", json!({}));
        job["metadata"]["annotations"] = json!({"kai.scheduler/batch-min-member": "3"});
        let mut wrapper = owner(version, kind, json!({}));
        wrapper["metadata"]["labels"] = json!({"kai.scheduler/queue": "gold",
            "priorityClassName": "build"});
        let mut case = GroupingCase::of(job).beside(class("build"));
        case.owners.push(wrapper);
        let group = case.group();
        let found = (group.owner.kind.as_str(), group.min_member);
        assert_eq!(found, ("Job", 3), "{kind}");
        let found = (group.queue.as_str(), group.priority_class.as_str());
        assert_eq!(found, ("gold", "build"), "{kind}");
    }
}

#[test]
fn jobs_of_single_vendors_say_it_their_own_way() {
    let job = |nodes: Value| {
        let spec = json!({"job": {"options": {"envs": {"AZUREML_NODE_COUNT": nodes}}}});
        GroupingCase::of(owner("amlarc.azureml.com/v1alpha1", "AmlJob", spec))
    };
    assert_eq!(job(json!(4)).group().min_member, 4);
    assert_eq!(job(json!(0)).group().min_member, 0);
    for nodes in [json!("4"), json!(null), json!(-1)] {
        let complaint = job(nodes).complaint();
        assert!(complaint.contains("AZUREML_NODE_COUNT"), "{complaint}");
    }
    // Each trial of a search is a group. An older version made one per job, or one per pod if several ran at once.
    for (at_once, kept, expected) in [
        (2, "pg-other-7", "pg-o-2-7"),
        (2, "pg-o-2-0-7", "pg-o-2-0-7"),
        (1, "pg-o-2-0-7", "pg-o-2-7"),
        (1, "pg-o-7", "pg-o-7"),
    ] {
        let job = owner("run.ai/v1", "RunaiJob", json!({"parallelism": at_once}));
        let old = json!({"kind": "PodGroup", "metadata": {"name": kept, "namespace": "lab"}});
        let mut case = GroupingCase::of(job).beside(old);
        case.pod["metadata"]["name"] = "o-2-0".into();
        case.settings.keeps_old_names = true;
        assert_eq!(case.group().name, expected);
    }
}
