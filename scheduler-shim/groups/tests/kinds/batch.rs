//! Jobs, JobSets, and their wrappers.

use serde_json::{Value, json};

use crate::case::{GroupingCase, owner, parts, with};

#[test]
fn a_job_says_by_annotation_how_many_pods_must_start_together() {
    let job = owner("batch/v1", "Job", json!({"parallelism": 8}));
    assert_eq!(GroupingCase::of(job.clone()).group().min_member, 1);
    let key = "kai.scheduler/batch-min-member";
    assert_eq!(
        GroupingCase::of(with(job.clone(), "annotations", key, "5"))
            .group()
            .min_member,
        5
    );
    let elastic = GroupingCase::of(with(job.clone(), "annotations", key, "0"));
    assert_eq!(elastic.group().min_member, 0);
    for said in ["-1", "some", ""] {
        let complaint = GroupingCase::of(with(job.clone(), "annotations", key, said)).complaint();
        assert!(complaint.contains(key), "{complaint}");
    }
}

#[test]
fn a_job_keeps_the_group_that_an_older_version_named_after_the_pod() {
    let key = "kai.scheduler/batch-min-member";
    let job = with(owner("batch/v1", "Job", json!({})), "annotations", key, "5");
    let old = json!({"kind": "PodGroup", "metadata": {"name": "pg-p-7", "namespace": "lab"}});
    let mut case = GroupingCase::of(job).beside(old);
    assert_eq!(case.group().name, "pg-o-7");
    case.settings.keeps_old_names = true;
    let group = case.group();
    assert_eq!((group.name.as_str(), group.min_member), ("pg-p-7", 1));
}

#[test]
fn each_run_of_a_cron_job_is_a_group() {
    let run = json!({"kind": "Job", "apiVersion": "batch/v1",
        "metadata": {"name": "o-1", "namespace": "lab", "uid": "8",
            "labels": {"team": "vision"}}});
    let mut case = GroupingCase::of(owner("batch/v1", "CronJob", json!({})));
    assert_eq!(case.complaint(), "no owner reference of type 'Job'");
    case.pod["metadata"]["ownerReferences"] = json!([{"kind": "Other", "name": "x"},
        {"kind": "Job", "name": "o-1"}]);
    assert_eq!(case.complaint(), "jobs.batch \"o-1\" not found");
    let group = case.beside(run).group();
    assert_eq!(group.labels["team"], "vision");
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
    let case = GroupingCase::of(owner("jobset.x-k8s.io/v1alpha2", "JobSet", spec))
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
    let case = GroupingCase::of(owner("jobset.x-k8s.io/v1alpha2", "JobSet", spec))
        .label("jobset.sigs.k8s.io/replicatedjob-name", "a")
        .label("jobset.sigs.k8s.io/job-index", "0");
    assert_eq!(case.group().min_sub_group, Some(1));
    // A group that an older version made for the replicated job stays as it is.
    let old = json!({"kind": "PodGroup", "metadata": {"name": "pg-o-7-a", "namespace": "lab"},
        "spec": {"minMember": 1}});
    let case = case.beside(old);
    let group = case.group();
    assert_eq!(
        (group.name.as_str(), group.min_sub_group),
        ("pg-o-7-a", None)
    );
    // So do those of the other replicated jobs: a JobSet has one form or the other.
    let other = case.label("jobset.sigs.k8s.io/replicatedjob-name", "b");
    assert_eq!(other.group().name, "pg-o-7-b");
}

#[test]
fn a_job_set_does_not_wait_for_more_replicated_jobs_than_it_has() {
    let key = "kai.scheduler/batch-min-member";
    let set = |said: &str, jobs: Value| {
        let set = owner(
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            json!({"replicatedJobs": jobs}),
        );
        GroupingCase::of(with(set, "annotations", key, said))
            .label("jobset.sigs.k8s.io/replicatedjob-name", "a")
            .label("jobset.sigs.k8s.io/job-index", "0")
    };
    let two = json!([{"name": "a"}, {"name": "b", "replicas": 0}]);
    assert_eq!(set("1", two.clone()).group().min_sub_group, Some(1));
    let group = set("7", two.clone()).group();
    assert_eq!(group.min_sub_group, Some(2));
    assert_eq!(
        parts(&group),
        [("a", 0, 0), ("a-replica-0", 1, 1), ("b", 0, 0)]
    );
    for (said, jobs, why) in [
        ("0", two.clone(), ">= 1"),
        ("1", json!([]), "no replicatedJobs"),
        (
            "1",
            json!([{"name": "a", "replicas": -1}]),
            "replicas of JobSet lab/o is -1",
        ),
        ("1", json!([{"replicas": 1}]), "replicatedJobs[0].name"),
        ("1", json!(["a"]), "replicatedJobs[0].name"),
    ] {
        let complaint = set(said, jobs).complaint();
        assert!(complaint.contains(why), "{complaint}");
    }
}

#[test]
fn the_rule_below_a_wrapper_sees_what_the_wrapper_says() {
    let wrapper = owner("argoproj.io/v1alpha1", "Workflow", json!({}));
    let wrapper = with(wrapper, "labels", "kai.scheduler/queue", "gold");
    let wrapper = with(wrapper, "labels", "team", "flow");
    let wrapper = with(wrapper, "annotations", "kai.scheduler/topology", "dc");
    let set = with(
        owner("apps/v1", "StatefulSet", json!({})),
        "labels",
        "team",
        "set",
    );
    let mut case = GroupingCase::of(set);
    case.owners.push(wrapper.clone());
    let group = case.group();
    assert_eq!(
        (group.queue.as_str(), group.labels["team"].as_str()),
        ("gold", "set")
    );
    assert_eq!(group.topology.name, "dc");
    // Of two wrappers, the lower one wins, and the upper one adds what is missing.
    let inner = with(
        owner("argoproj.io/v1alpha1", "Workflow", json!({})),
        "labels",
        "team",
        "inner",
    );
    let mut case = GroupingCase::of(owner("batch/v1", "Job", json!({})));
    case.owners.extend([inner, wrapper.clone()]);
    let group = case.group();
    assert_eq!(
        (group.queue.as_str(), group.labels["team"].as_str()),
        ("gold", "inner")
    );
}

#[test]
fn the_pods_of_a_spark_application_are_one_group() {
    let mut case = GroupingCase::of(Value::Null)
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
    let mut case = GroupingCase::of(job);
    case.owners.push(wrapper);
    let group = case.group();
    assert_eq!((group.owner.kind.as_str(), group.min_member), ("Job", 3));
    assert_eq!(group.queue, "gold");
}

#[test]
fn a_workflow_is_as_many_groups_as_it_has_pods() {
    let group = GroupingCase::of(owner("argoproj.io/v1alpha1", "Workflow", json!({}))).group();
    assert_eq!(
        (group.name.as_str(), group.owner.kind.as_str()),
        ("pg-p-9", "Pod")
    );
}
