//! One row for each kind, with its rule.
//!
//! The version of an API group does not matter here: a field that a rule reads is in the same place in all versions
//! that are served today, or the rule looks in both.

use crate::error::GroupingError;
use crate::group::DerivedPodGroup;
use crate::kinds::kubeflow::no_parts;
use crate::kinds::{
    batch, grove, job_set, karta, knative, lws, mpi, pods, pytorch, ray, skip, training,
};
use crate::names::{BUILD, INFERENCE, TRAIN};
use crate::object::ObjectView;
use crate::workload::GroupingInput;

/// How the pods of one kind of owner are grouped.
#[derive(Debug, Clone, Copy)]
pub struct OwnerKindEntry<'a> {
    /// The API group of the owner; empty for the core group.
    pub api_group: &'a str,
    /// The kind of the owner.
    pub kind: &'a str,
    /// The priority class of a group without any other.
    pub priority: &'static str,
    /// How the group is derived.
    pub rule: GroupingRule<'a>,
}

/// How a group is derived from an owner.
#[derive(Debug, Clone, Copy)]
pub enum GroupingRule<'a> {
    /// One group per owner with a minimum of one pod, on the terms of all owners.
    Plain,
    /// A map of roles; all replicas of all roles start together.
    Replicas(ReplicaRoles<'a>),
    /// A rule of its own.
    Own(fn(&OwnerKindEntry<'_>, &GroupingInput<'_>) -> Result<DerivedPodGroup, GroupingError>),
}

/// Where an owner keeps its roles.
#[derive(Debug, Clone, Copy)]
pub struct ReplicaRoles<'a> {
    /// The field of `spec`.
    pub field: &'a str,
    /// Required roles.
    pub mandatory: &'a [&'a str],
    /// What the kind adds after the members are counted.
    pub refine: fn(&GroupingInput<'_>, &mut DerivedPodGroup) -> Result<(), GroupingError>,
}

/// Every kind with a rule, by API group and kind.
pub const TABLE: &[OwnerKindEntry<'static>] = &[
    // Kubernetes itself.
    own("", "Pod", TRAIN, pods::bare),
    plain("", "ReplicationController", TRAIN),
    plain("apps", "ReplicaSet", TRAIN),
    plain("apps", "StatefulSet", TRAIN),
    plain("apps", "DaemonSet", TRAIN),
    own("apps", "Deployment", INFERENCE, pods::one_group_per_pod),
    own("batch", "Job", TRAIN, batch::job),
    own("batch", "CronJob", TRAIN, batch::cron_job),
    own("jobset.x-k8s.io", "JobSet", TRAIN, job_set::group),
    own(
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        TRAIN,
        lws::group,
    ),
    // Kubeflow.
    replicas("kubeflow.org", "TFJob", "tfReplicaSpecs", &[], no_parts),
    replicas(
        "kubeflow.org",
        "PyTorchJob",
        "pytorchReplicaSpecs",
        &[],
        pytorch::refine,
    ),
    replicas(
        "kubeflow.org",
        "XGBoostJob",
        "xgbReplicaSpecs",
        &["Master", "Worker"],
        no_parts,
    ),
    replicas(
        "kubeflow.org",
        "JAXJob",
        "jaxReplicaSpecs",
        &["Worker"],
        no_parts,
    ),
    replicas(
        "kubeflow.org",
        "MPIJob",
        "mpiReplicaSpecs",
        &["Launcher", "Worker"],
        mpi::refine,
    ),
    own("kubeflow.org", "Notebook", BUILD, pods::of_owner),
    plain("kubeflow.org", "ScheduledWorkflow", TRAIN),
    own("trainer.kubeflow.org", "TrainJob", TRAIN, skip::below),
    // Ray.
    own("ray.io", "RayCluster", TRAIN, ray::cluster),
    own("ray.io", "RayJob", TRAIN, ray::job),
    own("ray.io", "RayService", TRAIN, ray::service),
    // Serving.
    own(
        "serving.knative.dev",
        "Service",
        INFERENCE,
        knative::service,
    ),
    own("grove.io", "PodGangSet", TRAIN, grove::group),
    own("grove.io", "PodCliqueSet", TRAIN, grove::group),
    own("grove.io", "PodCliqueScalingGroup", TRAIN, grove::group),
    own("grove.io", "PodClique", TRAIN, grove::group),
    own("nvidia.com", "DynamoGraphDeployment", TRAIN, skip::below),
    plain("machinelearning.seldon.io", "SeldonDeployment", TRAIN),
    own("egx.nvidia.io", "SPOTRequest", INFERENCE, pods::of_owner),
    // Pipelines and workspaces.
    own("argoproj.io", "Workflow", TRAIN, skip::below),
    plain("tekton.dev", "PipelineRun", TRAIN),
    plain("tekton.dev", "TaskRun", TRAIN),
    plain("workspace.devfile.io", "DevWorkspace", TRAIN),
    plain("kubevirt.io", "VirtualMachineInstance", TRAIN),
    own("amlarc.azureml.com", "AmlJob", TRAIN, training::aml_job),
    own("run.ai", "RunaiJob", TRAIN, training::runai_job),
    own("run.ai", "TrainingWorkload", TRAIN, skip::below),
    own("run.ai", "InteractiveWorkload", TRAIN, skip::below),
    own("run.ai", "InferenceWorkload", TRAIN, skip::below),
    own("run.ai", "DistributedWorkload", TRAIN, skip::below),
    own("run.ai", "DistributedInferenceWorkload", TRAIN, skip::below),
    own("run.ai", "ExternalWorkload", TRAIN, skip::below),
];

/// Any other kind: by its Karta definition if the cluster has one.
pub const OTHER: OwnerKindEntry<'static> = own("", "", TRAIN, karta::group);

/// The row of an owner's kind. The API server omits the kind of objects in lists. An object without one is a pod,
/// since owners always have a kind.
pub fn row_of(owner: ObjectView<'_>) -> &'static OwnerKindEntry<'static> {
    let key = match owner.kind() {
        "" => ("", "Pod"),
        kind => (owner.api_group(), kind),
    };
    TABLE
        .iter()
        .find(|row| (row.api_group, row.kind) == key)
        .unwrap_or(&OTHER)
}

const fn plain(
    api_group: &'static str,
    kind: &'static str,
    priority: &'static str,
) -> OwnerKindEntry<'static> {
    OwnerKindEntry {
        api_group,
        kind,
        priority,
        rule: GroupingRule::Plain,
    }
}

const fn replicas(
    api_group: &'static str,
    kind: &'static str,
    field: &'static str,
    mandatory: &'static [&'static str],
    refine: fn(&GroupingInput<'_>, &mut DerivedPodGroup) -> Result<(), GroupingError>,
) -> OwnerKindEntry<'static> {
    OwnerKindEntry {
        api_group,
        kind,
        priority: TRAIN,
        rule: GroupingRule::Replicas(ReplicaRoles {
            field,
            mandatory,
            refine,
        }),
    }
}

const fn own(
    api_group: &'static str,
    kind: &'static str,
    priority: &'static str,
    rule: fn(&OwnerKindEntry<'_>, &GroupingInput<'_>) -> Result<DerivedPodGroup, GroupingError>,
) -> OwnerKindEntry<'static> {
    OwnerKindEntry {
        api_group,
        kind,
        priority,
        rule: GroupingRule::Own(rule),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_kind_has_two_rows() {
        for (i, row) in TABLE.iter().enumerate() {
            let again = TABLE[i + 1..]
                .iter()
                .any(|other| (other.api_group, other.kind) == (row.api_group, row.kind));
            assert!(!again, "{} {}", row.api_group, row.kind);
        }
    }
}
