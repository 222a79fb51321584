//! The kinds whose children are created: a row for each.

use kube::api::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::{jobset, kubeflow};

/// One kind.
pub(crate) struct Kind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    /// The children of an object.
    pub(crate) children: fn(&Value) -> Vec<Value>,
}

const fn kubeflow(version: &'static str, kind: &'static str) -> Kind {
    Kind {
        group: "kubeflow.org",
        version,
        kind,
        children: kubeflow::pods,
    }
}

/// All of them.
pub(crate) static ALL: &[Kind] = &[
    kubeflow("v1", "PyTorchJob"),
    kubeflow("v1", "TFJob"),
    kubeflow("v1", "XGBoostJob"),
    kubeflow("v1", "JAXJob"),
    kubeflow("v2beta1", "MPIJob"),
    Kind {
        group: "jobset.x-k8s.io",
        version: "v1alpha2",
        kind: "JobSet",
        children: jobset::jobs,
    },
];

impl Kind {
    pub(crate) fn resource(&self) -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk(self.group, self.version, self.kind))
    }
}

/// The reference of a child to its controller.
pub(crate) fn owner(object: &Value) -> Value {
    json!([{"apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}])
}

/// A child made of a template, with labels beside those of the template.
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
