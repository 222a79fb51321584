//! Objects from the API server, without the fields that no decision needs.
//!
//! Most of an object is for others: what a container runs, which images a node has, who wrote which field. A cluster
//! has thousands of objects, and each comes again with every change. So the rest is not even parsed. A field is
//! dropped by its name, wherever it is, if it is a list or a map. A label or an annotation of that name is a string,
//! and stays.

use std::fmt;

use kube::Resource;
use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use apportion_model::config_maps;

/// Lists and maps that nothing here reads.
const UNREAD: &[&str] = &[
    "addresses",
    "args",
    "binaryData",
    "cards",
    "command",
    "containerStatuses",
    "daemonEndpoints",
    "data",
    "downwardAPI",
    "emptyDir",
    "env",
    "envFrom",
    "ephemeralContainerStatuses",
    "ephemeralContainers",
    "hostPath",
    "images",
    "initContainerStatuses",
    "lifecycle",
    "livenessProbe",
    "managedFields",
    "nodeInfo",
    "podIPs",
    "projected",
    "readinessProbe",
    "runtimeHandlers",
    "secret",
    "securityContext",
    "startupProbe",
    "volumeDevices",
    "volumeMounts",
    "volumesAttached",
    "volumesInUse",
];
/// Of these, maps are read: the arguments of a container are a list, those of a scheduling shard are a map.
const READ_AS_MAP: &[&str] = &["args"];
/// The annotation in which `kubectl apply` keeps the object.
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An object with the fields that are read.
#[derive(Clone, Debug)]
pub(crate) struct PrunedObject {
    /// The fields that the watcher needs.
    metadata: ObjectMeta,
    json: Value,
}

impl PrunedObject {
    /// The object as JSON, with kind and API version, which lists leave out.
    pub(crate) fn json(self, resource: &ApiResource) -> Value {
        let mut json = self.json;
        if resource.kind == "Pod" {
            without_bulk(&mut json);
        }
        json["kind"] = resource.kind.as_str().into();
        json["apiVersion"] = resource.api_version.as_str().into();
        json
    }
}

/// Fields of a pod that only its kubelet needs. Maps are expensive, and one map node has room for eleven fields.
const OF_POD: &[&str] = &[
    "dnsPolicy",
    "enableServiceLinks",
    "serviceAccount",
    "serviceAccountName",
    "terminationGracePeriodSeconds",
];
const OF_CONTAINER: &[&str] = &[
    "image",
    "imagePullPolicy",
    "stdin",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
    "workingDir",
];
/// Fields that its kubelet reports, and nothing here reads.
const OF_STATUS: &[&str] = &[
    "conditions",
    "hostIP",
    "podIP",
    "qosClass",
    "observedGeneration",
];

/// Drops the volumes that a pod never waits for, and what only its kubelet reads or writes.
fn without_bulk(pod: &mut Value) {
    let volumes = pod.pointer_mut("/spec/volumes");
    if let Some(volumes) = volumes.and_then(Value::as_array_mut) {
        volumes.retain(|volume| {
            ["persistentVolumeClaim", "ephemeral", "configMap"]
                .iter()
                .any(|kind| volume[kind].is_object())
        });
        volumes.iter_mut().for_each(config_maps::prune_fields);
        volumes.shrink_to_fit();
    }
    for list in ["/spec/containers", "/spec/initContainers"] {
        let all = pod.pointer_mut(list).and_then(Value::as_array_mut);
        all.into_iter()
            .flatten()
            .for_each(|one| drop_all(Some(one), OF_CONTAINER));
    }
    drop_all(pod.pointer_mut("/spec"), OF_POD);
    drop_all(pod.pointer_mut("/status"), OF_STATUS);
}

fn drop_all(json: Option<&mut Value>, fields: &[&str]) {
    if let Some(map) = json.and_then(Value::as_object_mut) {
        map.retain(|field, _| !fields.contains(&field.as_str()));
    }
}

impl<'de> Deserialize<'de> for PrunedObject {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut json = PruningReader.deserialize(from)?;
        let annotations = json.pointer_mut("/metadata/annotations");
        if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
            annotations.remove(APPLIED);
        }
        let text = |field: &str| json["metadata"][field].as_str().map(str::to_owned);
        let metadata = ObjectMeta {
            name: text("name"),
            namespace: text("namespace"),
            resource_version: text("resourceVersion"),
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, json })
    }
}

impl Resource for PrunedObject {
    type DynamicType = ApiResource;
    type Scope = <DynamicObject as Resource>::Scope;

    fn kind(kind: &ApiResource) -> std::borrow::Cow<'_, str> {
        DynamicObject::kind(kind)
    }

    fn group(kind: &ApiResource) -> std::borrow::Cow<'_, str> {
        DynamicObject::group(kind)
    }

    fn version(kind: &ApiResource) -> std::borrow::Cow<'_, str> {
        DynamicObject::version(kind)
    }

    fn plural(kind: &ApiResource) -> std::borrow::Cow<'_, str> {
        DynamicObject::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Parses JSON without the unread fields.
#[derive(Clone, Copy)]
struct PruningReader;

/// Parses the value of an unread field: only strings, numbers and booleans stay.
#[derive(Clone, Copy)]
struct ScalarReader {
    reads_maps: bool,
}

macro_rules! plain {
    ($($visit:ident($kind:ty))*) => {$(
        fn $visit<E>(self, value: $kind) -> Result<Value, E> {
            Ok(value.into())
        }
    )*};
}

macro_rules! plains {
    () => {
        plain! { visit_bool(bool) visit_i64(i64) visit_u64(u64) visit_f64(f64) visit_str(&str) visit_string(String) }

        fn visit_unit<E>(self) -> Result<Value, E> {
            Ok(Value::Null)
        }

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("JSON")
        }
    };
}

impl<'de> DeserializeSeed<'de> for PruningReader {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PruningReader {
    type Value = Value;

    plains!();

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(entry) = from.next_element_seed(Self)? {
            list.push(entry);
        }
        list.shrink_to_fit();
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = from.next_key::<String>()? {
            let value = if UNREAD.contains(&key.as_str()) {
                from.next_value_seed(ScalarReader {
                    reads_maps: READ_AS_MAP.contains(&key.as_str()),
                })?
            } else {
                from.next_value_seed(Self)?
            };
            if !value.is_null() {
                map.insert(key, value);
            }
        }
        Ok(Value::Object(map))
    }
}

impl<'de> DeserializeSeed<'de> for ScalarReader {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ScalarReader {
    type Value = Value;

    plains!();

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        while from.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        if self.reads_maps {
            return PruningReader.visit_map(from);
        }
        while from.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pruned(kind: &str, object: &Value) -> Value {
        let read: PrunedObject = serde_json::from_str(&object.to_string()).unwrap();
        let resource = ApiResource {
            group: String::new(),
            version: "v1".to_owned(),
            api_version: "v1".to_owned(),
            kind: kind.to_owned(),
            plural: String::new(),
        };
        read.json(&resource)
    }

    #[test]
    fn what_decides_is_kept_and_the_rest_is_not() {
        let pod = json!({"metadata": {"name": "a", "uid": "u", "managedFields": [{"manager": "m"}],
                "labels": {"env": "prod", "images": "none"}, "annotations": {APPLIED: "{}", "gpu-fraction": "0.5"}},
            "spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "b"}], "command": ["sh"],
                    "resources": {"limits": {"nvidia.com/gpu": 1}}, "ports": [{"hostPort": 80}]}],
                "volumes": [{"name": "token", "projected": {"sources": []}},
                    {"name": "map", "configMap": {"name": "m", "items": []}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready"}], "containerStatuses": [{"name": "main"}]}});
        let kept = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "uid": "u",
                "labels": {"env": "prod", "images": "none"}, "annotations": {"gpu-fraction": "0.5"}},
            "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}},
                    "ports": [{"hostPort": 80}]}],
                "volumes": [{"name": "map", "configMap": {"name": "m"}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]},
            "status": {"phase": "Running"}});
        assert_eq!(pruned("Pod", &pod), kept);
    }

    #[test]
    fn the_arguments_of_a_shard_are_read_and_those_of_a_container_are_not() {
        let shard = json!({"metadata": {"name": "default"}, "spec":
            {"args": {"restrict-node-scheduling": "true"}}});
        assert_eq!(pruned("SchedulingShard", &shard)["spec"], shard["spec"]);
        let set = json!({"metadata": {"name": "s"}, "spec": {"template": {"spec":
            {"containers": [{"name": "main", "args": ["sleep", "1"]}]}}}});
        let container = &pruned("ReplicaSet", &set)["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(*container, json!({"name": "main"}));
    }

    #[test]
    fn a_node_keeps_its_conditions_and_what_it_has_to_give() {
        let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4"},
            "images": [{"names": ["x"]}], "conditions": [{"type": "Ready", "status": "True"}]}});
        let kept = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status":
            {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}});
        assert_eq!(pruned("Node", &node), kept);
    }
}
