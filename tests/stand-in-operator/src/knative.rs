//! Knative services: a configuration, its first revision, and that revision's Deployment. Nothing is routed or scaled:
//! the Deployment has the revision's initial replicas.

use serde_json::{Map, Value, json};

use crate::kinds::owner;

const GROUP: &str = "serving.knative.dev";
const MIN_SCALE: &str = "autoscaling.knative.dev/min-scale";
const AUTOSCALING: &str = "autoscaling.knative.dev/";
/// Fields of a revision that concern its requests and are not part of a pod.
const NOT_OF_PODS: &[&str] = &[
    "containerConcurrency",
    "timeoutSeconds",
    "responseStartTimeoutSeconds",
    "idleTimeoutSeconds",
];

pub(crate) fn configuration(service: &Value) -> Vec<Value> {
    let name = service["metadata"]["name"].clone();
    let labels = json!({label("service"): name});
    let metadata = metadata(service, name, &labels);
    vec![
        json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Configuration", "metadata": metadata,
        "spec": {"template": service["spec"]["template"]}}),
    ]
}

pub(crate) fn revision(configuration: &Value) -> Vec<Value> {
    let name = configuration["metadata"]["name"]
        .as_str()
        .unwrap_or_default();
    let template = &configuration["spec"]["template"];
    let mut labels = fields(&template["metadata"]["labels"]);
    labels.extend(fields(&configuration["metadata"]["labels"]));
    labels.insert(label("configuration"), name.into());
    labels.insert(label("configurationGeneration"), "1".into());
    let mut metadata = metadata(
        configuration,
        format!("{name}-00001").into(),
        &labels.into(),
    );
    metadata["annotations"] = fields(&template["metadata"]["annotations"]).into();
    vec![
        json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Revision", "metadata": metadata,
        "spec": template["spec"]}),
    ]
}

pub(crate) fn deployment(revision: &Value) -> Vec<Value> {
    let facts = &revision["metadata"];
    let name = facts["name"].as_str().unwrap_or_default();
    let mut labels = fields(&facts["labels"]);
    labels.insert(label("revision"), name.into());
    labels.insert(label("revisionUID"), facts["uid"].clone());
    labels.entry("app").or_insert_with(|| name.into());
    let mut annotations = fields(&facts["annotations"]);
    annotations.retain(|name, _| !name.starts_with(AUTOSCALING));
    let scale = facts["annotations"][MIN_SCALE].as_str();
    let scale: u32 = scale.and_then(|scale| scale.parse().ok()).unwrap_or(1);
    let mut pod = fields(&revision["spec"]);
    pod.retain(|name, _| !NOT_OF_PODS.contains(&name.as_str()));
    let chosen = json!({label("revisionUID"): facts["uid"]});
    let labels = Value::from(labels);
    let metadata = metadata(revision, format!("{name}-deployment").into(), &labels);
    vec![
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {"replicas": scale.max(1), "selector": {"matchLabels": chosen},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}}}),
    ]
}

fn label(name: &str) -> String {
    format!("{GROUP}/{name}")
}

fn fields(object: &Value) -> Map<String, Value> {
    object.as_object().cloned().unwrap_or_default()
}

fn metadata(of: &Value, name: Value, labels: &Value) -> Value {
    json!({"name": name, "namespace": of["metadata"]["namespace"], "labels": labels,
        "ownerReferences": owner(of)})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The child as the API server would store it.
    fn stored(mut children: Vec<Value>, uid: &str) -> Value {
        assert_eq!(children.len(), 1);
        let mut child = children.remove(0);
        child["metadata"]["uid"] = uid.into();
        child
    }

    #[test]
    fn a_service_has_a_deployment_with_the_replicas_of_its_smallest_scale() {
        for (scale, replicas) in [("2", 2), ("0", 1)] {
            let template = json!({"metadata": {"labels": {"app": "a", "queue": "q"},
                "annotations": {MIN_SCALE: scale, "note": "n"}},
                "spec": {"timeoutSeconds": 3, "containers": [], "schedulerName": "s"}});
            let service = json!({"apiVersion": "serving.knative.dev/v1", "kind": "Service",
                "metadata": {"name": "web", "namespace": "n", "uid": "1"}, "spec": {"template": template}});
            let configuration = stored(configuration(&service), "2");
            let revision = stored(revision(&configuration), "3");
            assert_eq!(revision["metadata"]["annotations"][MIN_SCALE], scale);
            let deployment = stored(deployment(&revision), "4");
            assert_eq!(deployment["spec"]["replicas"], replicas);
            let pod = &deployment["spec"]["template"];
            assert_eq!(pod["spec"], json!({"containers": [], "schedulerName": "s"}));
            let labels = json!({"app": "a", "queue": "q", "serving.knative.dev/service": "web",
                "serving.knative.dev/configuration": "web", "serving.knative.dev/configurationGeneration": "1",
                "serving.knative.dev/revision": "web-00001", "serving.knative.dev/revisionUID": "3"});
            assert_eq!(pod["metadata"]["labels"], labels);
            assert_eq!(pod["metadata"]["annotations"], json!({"note": "n"}));
            let owner = &deployment["metadata"]["ownerReferences"][0];
            assert_eq!(
                (&owner["kind"], &owner["name"]),
                (&json!("Revision"), &json!("web-00001"))
            );
        }
    }
}
