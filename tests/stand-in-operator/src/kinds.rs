//! The kinds whose children are created, one row each.

use kube::api::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::{jobset, knative, kubeflow};

pub(crate) struct WorkloadKind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    /// The children of an object.
    pub(crate) children: fn(&Value) -> Vec<Value>,
}

const fn kubeflow(version: &'static str, kind: &'static str) -> WorkloadKind {
    WorkloadKind {
        group: "kubeflow.org",
        version,
        kind,
        children: kubeflow::pods,
    }
}

const fn knative(kind: &'static str, children: fn(&Value) -> Vec<Value>) -> WorkloadKind {
    WorkloadKind {
        group: "serving.knative.dev",
        version: "v1",
        kind,
        children,
    }
}

pub(crate) static ALL: &[WorkloadKind] = &[
    kubeflow("v1", "PyTorchJob"),
    kubeflow("v1", "TFJob"),
    kubeflow("v1", "XGBoostJob"),
    kubeflow("v1", "JAXJob"),
    kubeflow("v2beta1", "MPIJob"),
    knative("Service", knative::configuration),
    knative("Configuration", knative::revision),
    knative("Revision", knative::deployment),
    WorkloadKind {
        group: "jobset.x-k8s.io",
        version: "v1alpha2",
        kind: "JobSet",
        children: jobset::jobs,
    },
];

impl WorkloadKind {
    pub(crate) fn resource(&self) -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk(self.group, self.version, self.kind))
    }
}

/// The API version in which an object was created. With real operators, each of a kind's versions has its own operator
/// for its own objects. Here one stands in for all versions, and the API server returns all objects in one version.
pub(crate) fn version(object: &Value, resource: &ApiResource) -> String {
    let first = &object["metadata"]["managedFields"][0]["apiVersion"];
    let created = first
        .as_str()
        .filter(|version| version.split('/').next() == Some(&resource.group));
    created.unwrap_or(&resource.api_version).to_owned()
}

/// The owner reference of a child to its controller.
pub(crate) fn owner(object: &Value) -> Value {
    json!([{"apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}])
}

/// A child from a template, with additional labels.
pub(crate) fn child(
    object: &Value,
    template: &Value,
    name: &str,
    labels: impl IntoIterator<Item = (&'static str, String)>,
) -> Value {
    let mut metadata = json!({"name": name, "namespace": object["metadata"]["namespace"],
        "labels": template["metadata"]["labels"].as_object().cloned().unwrap_or_default(),
        "annotations": template["metadata"]["annotations"].as_object().cloned().unwrap_or_default(),
        "ownerReferences": owner(object)});
    for (label, value) in labels {
        metadata["labels"][label] = value.into();
    }
    json!({"metadata": metadata, "spec": template["spec"]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_belong_to_the_version_in_which_their_owner_was_created() {
        let resource = kubeflow("v2beta1", "MPIJob").resource();
        let by = |first: &str| json!({"metadata": {"managedFields": [{"apiVersion": first}, {"apiVersion": "v1"}]}});
        assert_eq!(
            version(&by("kubeflow.org/v1"), &resource),
            "kubeflow.org/v1"
        );
        assert_eq!(version(&by("v1"), &resource), "kubeflow.org/v2beta1");
        assert_eq!(version(&json!({}), &resource), "kubeflow.org/v2beta1");
    }
}
