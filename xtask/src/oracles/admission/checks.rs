//! Checks of a changed pod: the whole object, or properties of it.

use apportion_admission::{Container, Pod};
use serde_json::Value;

use super::texts;

const CONFIG_MAP: &str = "runai/shared-gpu-configmap";

/// What is wrong with a pod after the rules changed it.
pub(super) fn all(pod: &Pod, expected: &Value) -> Option<String> {
    if let Some(after) = expected
        .get("object_after")
        .filter(|after| !after.is_null())
    {
        let whole = serde_json::to_value(pod).unwrap_or_default();
        if pruned(&whole) != pruned(after) {
            return Some(format!("became {whole}, not {after}"));
        }
    }
    let checks = expected["checks"].as_array().into_iter().flatten();
    checks
        .filter(|check| !holds(pod, check))
        .map(|check| format!("not so: {check}"))
        .next()
}

fn holds(pod: &Pod, check: &Value) -> bool {
    let name = check["name"].as_str().unwrap_or_default();
    let annotation = |key: &str| pod.annotation(key);
    let variable = |container: &Container, name: &str| {
        let mut all = container.env.iter();
        all.find(|variable| variable.name == name).cloned()
    };
    match check["check"].as_str().unwrap_or_default() {
        "annotation_present" => annotation(name).is_some(),
        "annotation_contains" => {
            let text = check["text"].as_str().unwrap_or_default();
            annotation(name).is_some_and(|value| value.contains(text))
        }
        "env_present" => of(pod, check).iter().all(|container| {
            texts(&check["names"]).all(|name| {
                variable(container, name).is_some_and(|found| matches_source(&found, check))
            })
        }),
        "env_absent" => of(pod, check).iter().all(|container| {
            texts(&check["names"]).all(|name| variable(container, name).is_none())
        }),
        "env_not_empty" => of(pod, check)
            .iter()
            .all(|container| !container.env.is_empty()),
        "env_configmap_refs_all" => of(pod, check).iter().all(|container| {
            let sources = container
                .env
                .iter()
                .filter_map(|env| env.value_from.as_ref());
            let mut maps = sources.filter_map(|source| source["configMapKeyRef"]["name"].as_str());
            maps.all(|map| map == named(pod, check))
        }),
        "envfrom_configmap_present" => of(pod, check).iter().all(|container| {
            let maps = container
                .env_from
                .iter()
                .filter_map(|from| from.config_map_ref.as_ref());
            let mut names = maps.map(|map| &map["name"]);
            names.any(|name| *name == named(pod, check))
        }),
        "configmap_volume_present" => {
            let unwanted = check["name_must_not_contain"].as_str();
            let mut volumes = pod.spec.volumes.iter();
            volumes.any(|volume| {
                let map = volume.config_map.as_ref().map(|map| &map["name"]);
                map.is_some_and(|map| *map == named(pod, check))
                    && unwanted.is_none_or(|text| !volume.name.contains(text))
            })
        }
        "containers_count" => {
            let count = u64::try_from(pod.spec.containers.len()).ok();
            count.is_some()
                && [&check["count"], &check["value"]]
                    .map(Value::as_u64)
                    .contains(&count)
        }
        "env_value_in_exactly" => {
            let value = check["value"].as_str().unwrap_or_default();
            let having = everyone(pod).into_iter().filter(|container| {
                let found = variable(container, name);
                found.is_some_and(|found| found.value == value)
            });
            let having: Vec<&str> = having.map(|container| container.name.as_str()).collect();
            having == texts(&check["containers"]).collect::<Vec<_>>()
        }
        _ => false,
    }
}

fn matches_source(variable: &apportion_admission::Variable, check: &Value) -> bool {
    let Some(source) = check["source"].as_str() else {
        return true;
    };
    let found = variable.value_from.as_ref().map(|from| &from[source]);
    let optional = &check["optional"];
    found.is_some_and(|found| {
        !found.is_null() && (optional.is_null() || found["optional"] == *optional)
    })
}

/// The config map that a check names; `$CM` is the pod's own.
fn named(pod: &Pod, check: &Value) -> String {
    let own = pod.annotation(CONFIG_MAP).unwrap_or_default();
    check["configmap"]
        .as_str()
        .unwrap_or_default()
        .replace("$CM", own)
}

fn everyone(pod: &Pod) -> Vec<&Container> {
    pod.spec
        .init_containers
        .iter()
        .chain(&pod.spec.containers)
        .collect()
}

/// The containers that a check is about; `*` means all.
fn of<'p>(pod: &'p Pod, check: &Value) -> Vec<&'p Container> {
    let name = check["container"].as_str().unwrap_or("*");
    let mut all = everyone(pod);
    all.retain(|container| name == "*" || container.name == name);
    all
}

/// The value without empty values.
fn pruned(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let fields = map.iter().map(|(key, value)| (key.clone(), pruned(value)));
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        Value::Array(list) => list.iter().map(pruned).collect(),
        other => other.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
