//! Jobs, sets of jobs, and what wraps them.

use serde_json::{Value, json};

use crate::case::{Case, owner, parts, with};

#[test]
fn a_job_says_by_annotation_how_many_pods_must_start_together() {
    let job = owner("batch/v1", "Job", json!({"parallelism": 8}));
    assert_eq!(Case::of(job.clone()).group().min_member, 1);
    let key = "kai.scheduler/batch-min-member";
    assert_eq!(
        Case::of(with(job.clone(), "annotations", key, "5"))
            .group()
            .min_member,
        5
    );
    assert!(
        Case::of(with(job, "annotations", key, "0"))
            .complaint()
            .contains(">= 1")
    );
}

#[test]
fn each_run_of_a_cron_job_is_a_group() {
    let run = json!({"kind": "Job", "apiVersion": "batch/v1",
        "metadata": {"name": "o-1", "namespace": "lab", "uid": "8"}});
    let mut case = Case::of(owner("batch/v1", "CronJob", json!({}))).beside(run);
    assert_eq!(case.complaint(), "no owner reference of type 'Job'");
    case.pod["metadata"]["ownerReferences"] = json!([{"kind": "Job", "name": "o-1"}]);
    let group = case.group();
    assert_eq!(
        (group.name.as_str(), group.owner.kind.as_str()),
        ("pg-o-1-8", "Job")
    );
}

#[test]
fn a_job_set_is_a_tree_of_replicas() {
    let spec = json!({"replicatedJobs": [
        {"name": "driver", "template": {"spec": {"parallelism": 1}}},
        {"name": "workers", "replicas": 2, "template": {"spec": {"parallelism": 4}}}]});
    let case = Case::of(owner("jobset.x-k8s.io/v1alpha2", "JobSet", spec))
        .label("jobset.sigs.k8s.io/replicatedjob-name", "workers")
        .label("jobset.sigs.k8s.io/job-index", "1");
    let group = case.group();
    assert_eq!((group.min_member, group.min_sub_group), (0, Some(2)));
    let expected = [
        ("driver", 0, 0),
        ("driver-replica-0", 1, 0),
        ("workers", 0, 0),
        ("workers-replica-0", 4, 0),
        ("workers-replica-1", 4, 1),
    ];
    assert_eq!(parts(&group), expected);
    let stranger = case.label("jobset.sigs.k8s.io/job-index", "2").complaint();
    assert!(stranger.contains("no replica 2"), "{stranger}");
}

#[test]
fn the_jobs_of_an_ordered_job_set_start_one_by_one() {
    let spec = json!({"startupPolicy": {"startupPolicyOrder": "InOrder"},
        "replicatedJobs": [{"name": "a"}, {"name": "b"}]});
    let case = Case::of(owner("jobset.x-k8s.io/v1alpha2", "JobSet", spec))
        .label("jobset.sigs.k8s.io/replicatedjob-name", "a")
        .label("jobset.sigs.k8s.io/job-index", "0");
    assert_eq!(case.group().min_sub_group, Some(1));
    // A group that an older version made for the replicated job stays as it is.
    let old = json!({"kind": "PodGroup", "metadata": {"name": "pg-o-7-a", "namespace": "lab"},
        "spec": {"minMember": 1}});
    let group = case.beside(old).group();
    assert_eq!(
        (group.name.as_str(), group.min_sub_group),
        ("pg-o-7-a", None)
    );
}

#[test]
fn the_pods_of_a_spark_application_are_one_group() {
    let mut case = Case::of(Value::Null)
        .label("spark-app-name", "etl")
        .label("spark-app-selector", "spark-42");
    case.owners.clear();
    assert_eq!(case.group().name, "spark-42");
}

#[test]
fn a_wrapper_leaves_the_decision_to_what_it_wraps() {
    let mut job = owner("batch/v1", "Job", json!({}));
    job["metadata"]["annotations"] = json!({"kai.scheduler/batch-min-member": "3"});
    let wrapper = owner("run.ai/v2alpha1", "TrainingWorkload", json!({}));
    let wrapper = with(wrapper, "labels", "kai.scheduler/queue", "gold");
    let mut case = Case::of(job);
    case.owners.push(wrapper);
    let group = case.group();
    assert_eq!((group.owner.kind.as_str(), group.min_member), ("Job", 3));
    assert_eq!(group.queue, "gold");
}

#[test]
fn a_workflow_is_as_many_groups_as_it_has_pods() {
    let group = Case::of(owner("argoproj.io/v1alpha1", "Workflow", json!({}))).group();
    assert_eq!(
        (group.name.as_str(), group.owner.kind.as_str()),
        ("pg-p-9", "Pod")
    );
}
