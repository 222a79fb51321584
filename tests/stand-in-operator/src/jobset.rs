//! JobSets: a Job for each replica of each replicated job. The job controller creates the Jobs' pods.

use serde_json::Value;

use crate::kinds::child;

pub(crate) fn jobs(object: &Value) -> Vec<Value> {
    let set = object["metadata"]["name"].as_str().unwrap_or_default();
    let replicated = object["spec"]["replicatedJobs"].as_array();
    let mut jobs = Vec::new();
    for row in replicated.into_iter().flatten() {
        let row_name = row["name"].as_str().unwrap_or_default();
        for number in 0..row["replicas"].as_u64().unwrap_or(1) {
            let name = format!("{set}-{row_name}-{number}");
            let labels = || {
                [
                    ("jobset.sigs.k8s.io/jobset-name", set.to_owned()),
                    ("jobset.sigs.k8s.io/replicatedjob-name", row_name.to_owned()),
                    ("jobset.sigs.k8s.io/job-index", number.to_string()),
                ]
            };
            let mut job = child(object, &row["template"], &name, labels());
            job["apiVersion"] = "batch/v1".into();
            job["kind"] = "Job".into();
            let template = &mut job["spec"]["template"];
            for (label, value) in labels() {
                template["metadata"]["labels"][label] = value.into();
            }
            jobs.push(job);
        }
    }
    jobs
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_replica_is_a_job_whose_pods_name_the_set() {
        let set = json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
            "metadata": {"name": "s", "namespace": "n", "uid": "u"},
            "spec": {"replicatedJobs": [{"name": "worker", "replicas": 2,
                "template": {"spec": {"parallelism": 3, "template": {"spec": {}}}}}]}});
        let jobs = jobs(&set);
        let names: Vec<_> = jobs.iter().map(|job| &job["metadata"]["name"]).collect();
        assert_eq!(names, ["s-worker-0", "s-worker-1"]);
        let labels = &jobs[1]["spec"]["template"]["metadata"]["labels"];
        assert_eq!(labels["jobset.sigs.k8s.io/jobset-name"], "s");
        assert_eq!(labels["jobset.sigs.k8s.io/job-index"], "1");
        assert_eq!(jobs[0]["spec"]["parallelism"], 3);
    }
}
