//! What KAI's kinds have in common, and the form that their manifests must have to stand in for KAI's.
//!
//! A schema that is made from Rust types says more than one that is made from Go types: which fields may be null,
//! how wide a number is, what an absent field becomes. The API server acts on the last: it would write defaults
//! into stored objects, and an object would differ by who installed its kind. So a manifest says what KAI's
//! says and no more.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::CustomResourceExt;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{PodGroup, Queue, Topology};

/// Amounts by the names of resources.
pub type Amounts = BTreeMap<String, Quantity>;

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum ConditionStatus {
    /// It does.
    True,
    /// It doesn't.
    False,
    /// Nobody can tell.
    #[default]
    Unknown,
}

/// What Kubernetes accepts as an amount.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Amounts by names, each a number or a text.
pub(crate) fn amounts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "pattern": QUANTITY,
            "x-kubernetes-int-or-string": true,
        },
    })
}

/// Any text, where the type knows which ones there are and the schema must not.
pub(crate) fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string"})
}

/// The manifests of KAI's kinds.
#[must_use]
pub fn manifests() -> Vec<CustomResourceDefinition> {
    [Queue::crd(), PodGroup::crd(), Topology::crd()]
        .into_iter()
        .map(in_kais_form)
        .collect()
}

fn in_kais_form(kind: CustomResourceDefinition) -> CustomResourceDefinition {
    // An object without a spec is the webhook's to refuse, in its words; a topology has none.
    let needs_spec = kind.spec.names.kind == "Topology";
    let mut json = serde_json::to_value(kind).expect("a manifest is JSON");
    let versions = json["spec"]["versions"].as_array_mut();
    for version in versions.into_iter().flatten() {
        let schema = &mut version["schema"]["openAPIV3Schema"];
        plain(schema);
        if let Some(root) = schema.as_object_mut().filter(|_| !needs_spec) {
            root.remove("required");
        }
    }
    serde_json::from_value(json).expect("the same manifest with less in it")
}

/// Removes from a schema what Go's types don't say.
fn plain(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("nullable");
            if fields.contains_key("x-kubernetes-int-or-string") {
                let either = json!([{"type": "integer"}, {"type": "string"}]);
                fields.insert("anyOf".to_owned(), either);
                return;
            }
            // A property may be named so; a keyword is no object.
            let format = fields.get("format").and_then(Value::as_str);
            if matches!(format, Some("double" | "int64")) {
                fields.remove("format");
            }
            if fields.contains_key("type") || fields.contains_key("anyOf") {
                fields.remove("default");
            }
            fields.values_mut().for_each(plain);
        }
        Value::Array(list) => list.iter_mut().for_each(plain),
        _ => {}
    }
}
