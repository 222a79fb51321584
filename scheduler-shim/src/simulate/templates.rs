//! The pods that controllers would create, for manifests that nobody has applied yet.
//!
//! A workload with a pod template and without pods gets those that its controller would create first, with the
//! labels by which they are grouped. A kind is one row.

use std::collections::BTreeSet;

use apportion_groups::ObjectView;
use serde_json::{Value, json};

use apportion_model::inventory::ObjectInventory;
use apportion_model::object_warnings::{ObjectWarnings, called};

mod job_set;
mod leaders;
mod ray;

/// Where a kind says which pods to create.
enum PodTemplateSource {
    /// `spec.template`, as often as this field says.
    Copies(&'static str),
    /// A map of roles in this field, each with `replicas` and `template`.
    Roles(&'static str),
    /// A function of its own.
    Own(fn(ObjectView<'_>) -> Vec<Value>),
}

const SHAPES: &[(&str, &str, PodTemplateSource)] = &[
    (
        "apps",
        "Deployment",
        PodTemplateSource::Copies("/spec/replicas"),
    ),
    (
        "apps",
        "ReplicaSet",
        PodTemplateSource::Copies("/spec/replicas"),
    ),
    (
        "apps",
        "StatefulSet",
        PodTemplateSource::Copies("/spec/replicas"),
    ),
    (
        "batch",
        "Job",
        PodTemplateSource::Copies("/spec/parallelism"),
    ),
    (
        "kubeflow.org",
        "PyTorchJob",
        PodTemplateSource::Roles("/spec/pytorchReplicaSpecs"),
    ),
    (
        "kubeflow.org",
        "TFJob",
        PodTemplateSource::Roles("/spec/tfReplicaSpecs"),
    ),
    (
        "kubeflow.org",
        "XGBoostJob",
        PodTemplateSource::Roles("/spec/xgbReplicaSpecs"),
    ),
    (
        "kubeflow.org",
        "JAXJob",
        PodTemplateSource::Roles("/spec/jaxReplicaSpecs"),
    ),
    (
        "kubeflow.org",
        "MPIJob",
        PodTemplateSource::Roles("/spec/mpiReplicaSpecs"),
    ),
    (
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        PodTemplateSource::Own(leaders::pods),
    ),
    (
        "jobset.x-k8s.io",
        "JobSet",
        PodTemplateSource::Own(job_set::pods),
    ),
    ("ray.io", "RayCluster", PodTemplateSource::Own(ray::pods)),
];

/// More pods in one workload are a mistake in its manifest. So many are simulated, and a warning says so.
const MOST: usize = 10_000;

/// The roles that start before the others, and the job role of their pods.
const FIRST: &[(&str, &str)] = &[
    ("master", "master"),
    ("chief", "master"),
    ("launcher", "launcher"),
];

/// Adds the pods of all workloads that have none.
pub(super) fn expand(inventory: &mut ObjectInventory, warnings: &mut ObjectWarnings) {
    for made in ray::clusters(inventory) {
        inventory.put(made, warnings);
    }
    let pods = pods(inventory, warnings);
    inventory.extend(pods, warnings);
}

fn pods(inventory: &ObjectInventory, warnings: &mut ObjectWarnings) -> Vec<Value> {
    let owners: BTreeSet<(String, String, String)> =
        inventory.every().flat_map(owners_of).collect();
    let mut pods = Vec::new();
    for (group, kind, shape) in SHAPES {
        for workload in inventory
            .all(kind)
            .filter(|found| found.api_group() == *group)
        {
            let key = [*kind, workload.namespace(), workload.name()].map(str::to_owned);
            if !owners.contains(&key.into()) && !is_idle(workload) {
                pods.extend(shape.pods(workload, warnings));
            }
        }
    }
    pods
}

fn owners_of(object: ObjectView<'_>) -> Vec<(String, String, String)> {
    let references = object.json().pointer("/metadata/ownerReferences");
    let references = references.and_then(Value::as_array).into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    references
        .map(|one| {
            (
                text(&one["kind"]),
                object.namespace().to_owned(),
                text(&one["name"]),
            )
        })
        .collect()
}

/// Whether it is suspended or over.
fn is_idle(workload: ObjectView<'_>) -> bool {
    let at = |path: &str| workload.json().pointer(path);
    let is_true = |path: &str| at(path).is_some_and(|value| *value == true);
    is_true("/spec/suspend")
        || is_true("/spec/runPolicy/suspend")
        || at("/status/completionTime").is_some_and(|value| !value.is_null())
}

impl PodTemplateSource {
    fn pods(&self, workload: ObjectView<'_>, warnings: &mut ObjectWarnings) -> Vec<Value> {
        let (json, name) = (workload.json(), workload.name());
        let made: Vec<Value> = match self {
            Self::Own(pods) => pods(workload),
            Self::Copies(field) => {
                let template = &json["spec"]["template"];
                let indices = 0..count(json.pointer(field), 1);
                indices
                    .map(|index| pod(workload, template, &format!("{name}-{index}"), &json!({})))
                    .collect()
            }
            Self::Roles(field) => {
                let roles = json.pointer(field).and_then(Value::as_object);
                roles
                    .into_iter()
                    .flatten()
                    .flat_map(|(role, spec)| pods_of(workload, role, spec))
                    .collect()
            }
        };
        let object = called(workload.kind(), workload.namespace(), name);
        let message = match made.len() {
            0 => return made,
            1 => "its pods are not given; one is simulated from its template".to_owned(),
            many => format!("its pods are not given; {many} are simulated from its template"),
        };
        warnings.add(object, message);
        made
    }
}

/// The pods of a role of a Kubeflow job.
fn pods_of(workload: ObjectView<'_>, role: &str, spec: &Value) -> Vec<Value> {
    let (name, role) = (workload.name(), role.to_lowercase());
    (0..count(spec.get("replicas"), 1))
        .map(|index| {
            let mut labels = json!({
                "training.kubeflow.org/job-name": name,
                "training.kubeflow.org/replica-type": role,
                "training.kubeflow.org/replica-index": index.to_string(),
            });
            if let Some((_, called)) = FIRST.iter().find(|(first, _)| *first == role) {
                labels["training.kubeflow.org/job-role"] = (*called).into();
            }
            let name = format!("{name}-{role}-{index}");
            pod(workload, &spec["template"], &name, &labels)
        })
        .collect()
}

/// One pod from a template.
fn pod(owner: ObjectView<'_>, template: &Value, name: &str, labels: &Value) -> Value {
    let mut metadata = template["metadata"].clone();
    if !metadata.is_object() {
        metadata = json!({});
    }
    if !metadata["labels"].is_object() {
        metadata["labels"] = json!({});
    }
    for (key, value) in labels.as_object().into_iter().flatten() {
        metadata["labels"][key] = value.clone();
    }
    metadata["name"] = name.into();
    metadata["namespace"] = owner.namespace().into();
    metadata["uid"] = "pod".into();
    if let Some(created) = owner.json().pointer("/metadata/creationTimestamp") {
        metadata["creationTimestamp"] = created.clone();
    }
    metadata["ownerReferences"] = json!([self::owner(owner)]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"],
        "status": {"phase": "Pending"}})
}

fn owner(owner: ObjectView<'_>) -> Value {
    json!({"apiVersion": owner.api_version(), "kind": owner.kind(), "name": owner.name(),
        "uid": owner.uid(), "controller": true})
}

/// A number in a manifest, at most `MOST`.
fn count(value: Option<&Value>, usual: u64) -> u64 {
    let most = u64::try_from(MOST).unwrap_or(u64::MAX);
    value.and_then(Value::as_u64).unwrap_or(usual).min(most)
}

fn list<'a>(json: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    let list = json.pointer(path).and_then(Value::as_array);
    list.into_iter().flatten()
}
