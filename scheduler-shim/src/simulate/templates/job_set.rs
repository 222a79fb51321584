//! JobSets: each replica of each replicated job is a Job with several pods.
//!
//! Replicated jobs that start in order are created one after the other, each when the one before it is ready. So at
//! first only the first has pods.

use apportion_groups::ObjectView;
use serde_json::{Value, json};

use super::{MOST, count, list, pod};

const IN_ORDER: &str = "InOrder";

pub(super) fn pods(set: ObjectView<'_>) -> Vec<Value> {
    let in_order =
        set.json().pointer("/spec/startupPolicy/startupPolicyOrder") == Some(&IN_ORDER.into());
    let jobs = list(set.json(), "/spec/replicatedJobs");
    let jobs = jobs.take(if in_order { 1 } else { usize::MAX });
    jobs.flat_map(|job| of_job(set, job)).collect()
}

fn of_job(set: ObjectView<'_>, job: &Value) -> Vec<Value> {
    let name = job["name"].as_str().unwrap_or_default();
    let parallelism = count(job.pointer("/template/spec/parallelism"), 1);
    let template = &job["template"]["spec"]["template"];
    let replicas = count(job.get("replicas"), 1);
    let places = (0..replicas).flat_map(|index| (0..parallelism).map(move |pod| (index, pod)));
    places
        .take(MOST)
        .map(|(index, number)| {
            let labels = json!({
                "jobset.sigs.k8s.io/jobset-name": set.name(),
                "jobset.sigs.k8s.io/replicatedjob-name": name,
                "jobset.sigs.k8s.io/job-index": index.to_string(),
            });
            let called = format!("{}-{name}-{index}-{number}", set.name());
            pod(set, template, &called, &labels)
        })
        .collect()
}
