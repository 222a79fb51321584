//! The part of a pod that admission reads and writes; the rest is carried along untouched.
//!
//! A pod that comes in and goes out again is the same JSON but for what a rule changed, so that the
//! difference is the patch. Absent, null and empty are the same, as everywhere in Kubernetes.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// What of an object no rule looks at.
type Rest = Map<String, Value>;
/// Amounts by the names of resources.
pub type ResourceList = BTreeMap<String, Value>;

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Declares structs whose fields may all be absent, with everything unknown kept.
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
    /// A pod.
    Pod {
        /// Who it is.
        metadata: Metadata,
        /// What it wants.
        spec: Spec,
        /// What became of it.
        status: Status,
    }

    /// Who an object is.
    Metadata {
        /// Its name.
        name: String,
        /// What its name will begin with, while it has none.
        generate_name: String,
        /// Where it is.
        namespace: String,
        /// What it is known by as long as it lives.
        uid: String,
        /// When it was asked to go.
        deletion_timestamp: Option<String>,
        /// Labels.
        labels: BTreeMap<String, String>,
        /// Annotations.
        annotations: BTreeMap<String, String>,
        /// Whom it belongs to.
        owner_references: Vec<Owner>,
    }

    /// An owner of an object.
    Owner {
        /// Its name.
        name: String,
    }

    /// What a pod wants.
    Spec {
        /// Who is to place it.
        scheduler_name: String,
        /// Where it was placed.
        node_name: String,
        /// How its containers are started.
        runtime_class_name: String,
        /// The containers that run one after the other, first.
        init_containers: Vec<Container>,
        /// The containers.
        containers: Vec<Container>,
        /// Volumes.
        volumes: Vec<Volume>,
    }

    /// What became of a pod.
    Status {
        /// `Pending`, `Running`, `Succeeded`, `Failed`.
        phase: String,
    }

    /// A container.
    Container {
        /// Its name.
        name: String,
        /// Its variables.
        env: Vec<Variable>,
        /// Objects all of whose entries become variables.
        env_from: Vec<VariablesFrom>,
        /// What it asks for.
        resources: Resources,
    }

    /// A variable of a container.
    Variable {
        /// Its name.
        name: String,
        /// Its value, if it stands here.
        value: String,
        /// Where its value is, if it doesn't.
        value_from: Option<Value>,
    }

    /// An object all of whose entries become variables.
    VariablesFrom {
        /// A config map.
        config_map_ref: Option<Value>,
    }

    /// What a container asks for.
    Resources {
        /// At most.
        limits: ResourceList,
        /// At least.
        requests: ResourceList,
    }

    /// A volume.
    Volume {
        /// Its name.
        name: String,
        /// The config map that it shows.
        config_map: Option<Value>,
    }
}

impl Pod {
    /// Reads a pod as the API server writes it.
    ///
    /// # Errors
    /// A field that is not of its kind.
    pub fn read(json: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(json)
    }

    /// An annotation; one that is empty counts as there, as it does for KAI.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.get(key).map(String::as_str)
    }

    /// The containers, those that run first after the others.
    pub(crate) fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec
            .containers
            .iter()
            .chain(&self.spec.init_containers)
    }
}

impl Container {
    /// Sets a variable at the end of the list, in place of any of its name.
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

    /// Sets a variable where it is, else at the end of the list.
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
