//! Kubeflow's training jobs and MPI jobs: a pod for each replica of each type.

use serde_json::Value;

use crate::kinds::child;

/// The end of the replica field's name, for all frameworks.
const REPLICAS: &str = "ReplicaSpecs";

pub(crate) fn pods(object: &Value) -> Vec<Value> {
    let job = object["metadata"]["name"].as_str().unwrap_or_default();
    let spec = object["spec"].as_object().into_iter().flatten();
    let types = spec
        .filter(|(field, _)| field.ends_with(REPLICAS))
        .filter_map(|(_, types)| types.as_object());
    let mut pods = Vec::new();
    for (kind, replicas) in types.flatten() {
        let kind = kind.to_lowercase();
        for number in 0..replicas["replicas"].as_u64().unwrap_or(1) {
            let name = format!("{job}-{kind}-{number}");
            let mut labels = vec![
                ("training.kubeflow.org/job-name", job.to_owned()),
                ("training.kubeflow.org/replica-type", kind.clone()),
                ("training.kubeflow.org/replica-index", number.to_string()),
            ];
            if kind == "master" {
                labels.push(("training.kubeflow.org/job-role", kind.clone()));
            }
            let mut pod = child(object, &replicas["template"], &name, labels);
            pod["apiVersion"] = "v1".into();
            pod["kind"] = "Pod".into();
            pod["spec"]["restartPolicy"] = match replicas["restartPolicy"].as_str() {
                Some(policy @ ("Always" | "OnFailure" | "Never")) => policy.into(),
                _ => "Never".into(),
            };
            pods.push(pod);
        }
    }
    pods
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_replica_is_a_pod_and_the_master_says_so() {
        let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": []}});
        let job = json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
            "metadata": {"name": "j", "namespace": "n", "uid": "u"},
            "spec": {"pytorchReplicaSpecs": {"Master": {"template": template},
                "Worker": {"replicas": 2, "template": template, "restartPolicy": "OnFailure"}}}});
        let pods = pods(&job);
        let names: Vec<_> = pods.iter().map(|pod| &pod["metadata"]["name"]).collect();
        assert_eq!(names, ["j-master-0", "j-worker-0", "j-worker-1"]);
        let labels = &pods[0]["metadata"]["labels"];
        assert_eq!(labels["training.kubeflow.org/job-role"], "master");
        assert_eq!(labels["app"], "a");
        assert_eq!(pods[1]["spec"]["restartPolicy"], "OnFailure");
        assert_eq!(
            pods[2]["metadata"]["ownerReferences"][0]["kind"],
            "PyTorchJob"
        );
    }
}
