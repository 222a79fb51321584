//! What KAI's kinds have in common, and how their manifests must look to replace KAI's.
//!
//! A schema generated from Rust types says more than one generated from Go types: which fields may be null, the width
//! of a number, the default of an absent field. The API server acts on defaults: it would write them into stored
//! objects, so an object would depend on which program installed its kind. So a manifest says what KAI's says and no
//! more.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::CustomResourceExt;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{PodGroup, Queue, Topology};

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// The status of a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// It does not hold.
    False,
    /// It is not known whether it holds.
    #[default]
    Unknown,
}

/// The pattern of a Kubernetes quantity.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// The schema of amounts by name, each a number or a text.
pub(crate) fn amounts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "pattern": QUANTITY,
            "x-kubernetes-int-or-string": true,
        },
    })
}

/// The schema of any text, for a type that has fixed values although the schema must not restrict them.
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
    // The webhook rejects a queue or pod group without a spec, with its own message. A topology's schema requires one.
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
            // A property may have this name too, but then it is an object and not a keyword.
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
