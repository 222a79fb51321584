//! The part of a pod that admission reads and writes. The rest is kept untouched.
//!
//! A pod is returned as the same JSON, except for what a rule changed, so the difference is the patch. Absent, null and
//! empty are the same, as everywhere in Kubernetes.

#![expect(
    missing_docs,
    reason = "the fields bear the names under which Kubernetes documents them"
)]

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// The fields of an object that no rule reads.
type Rest = Map<String, Value>;
/// Amounts by resource name.
pub type ResourceList = BTreeMap<String, Value>;

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Declares structs whose fields are all optional and whose unknown fields are kept.
macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $(
                $(#[$field_doc])*
                #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_default")]
                pub $field: $kind,
            )*
            #[serde(flatten)]
            pub(crate) rest: Rest,
        }
    )*};
}

parts! {
    Pod {
        metadata: Metadata,
        spec: Spec,
        status: Status,
    }

    Metadata {
        name: String,
        /// The prefix of a generated name.
        generate_name: String,
        namespace: String,
        uid: String,
        /// When its deletion was requested.
        deletion_timestamp: Option<String>,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        owner_references: Vec<Owner>,
    }

    /// An owner of an object.
    Owner {
        name: String,
    }

    Spec {
        scheduler_name: String,
        /// Its node, once it is bound.
        node_name: String,
        runtime_class_name: String,
        init_containers: Vec<Container>,
        containers: Vec<Container>,
        volumes: Vec<Volume>,
    }

    Status {
        /// `Pending`, `Running`, `Succeeded`, `Failed`.
        phase: String,
    }

    Container {
        name: String,
        env: Vec<Variable>,
        /// Objects whose entries all become variables.
        env_from: Vec<VariablesFrom>,
        resources: Resources,
    }

    Variable {
        name: String,
        /// Its value, if it is given here.
        value: String,
        /// The source of its value otherwise.
        value_from: Option<Value>,
    }

    /// An object whose entries all become variables.
    VariablesFrom {
        /// A reference to a config map.
        config_map_ref: Option<Value>,
    }

    Resources {
        limits: ResourceList,
        requests: ResourceList,
    }

    Volume {
        name: String,
        /// The config map that it mounts.
        config_map: Option<Value>,
    }
}

impl Pod {
    /// Parses a pod from the API server's JSON.
    ///
    /// # Errors
    /// A field has the wrong type.
    pub fn read(json: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(json)
    }

    /// The value of an annotation. An empty one counts as present, as in KAI.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.get(key).map(String::as_str)
    }

    /// The containers, init containers last.
    pub(crate) fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec
            .containers
            .iter()
            .chain(&self.spec.init_containers)
    }
}

impl Container {
    /// Adds a variable at the end of the list, and removes any other of the same name.
    pub(crate) fn append(&mut self, name: &str, from: Value) {
        self.remove(name);
        self.env.push(Variable {
            name: name.to_owned(),
            value_from: Some(from),
            ..Variable::default()
        });
    }

    /// Removes a variable.
    pub(crate) fn remove(&mut self, name: &str) {
        self.env.retain(|variable| variable.name != name);
    }

    /// Sets a variable in its place, or at the end of the list.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        let value = value.to_owned();
        match self.env.iter_mut().find(|variable| variable.name == name) {
            Some(found) => (found.value, found.value_from) = (value, None),
            None => self.env.push(Variable {
                name: name.to_owned(),
                value,
                ..Variable::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_no_rule_knows_is_kept() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "uid": "1", "annotations": {"k": "v"}},
            "spec": {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": "i",
                "env": [{"name": "A", "value": "1"}], "resources": {"claims": [{"name": "x"}]}}]},
            "status": {"qosClass": "BestEffort"}});
        let read = Pod::read(&pod).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), pod);
    }

    #[test]
    fn null_is_absent() {
        let pod = json!({"metadata": null, "spec": {"containers": null, "volumes": null}});
        assert_eq!(Pod::read(&pod).unwrap(), Pod::default());
    }
}
