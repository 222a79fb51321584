//! The same scenario described differently: the expected result stays the same.
//!
//! No decision may depend on the order in which a cluster is described, or on names as long as they sort the same way.
//! So every scenario is three: as written, in reverse order, and with other names.

use serde_json::{Map, Value};

/// Reverses all lists whose order means nothing.
pub(crate) fn backwards(scenario: &Value) -> Value {
    let mut scenario = scenario.clone();
    for list in ["nodes", "queues", "jobs", "topologies"] {
        reverse(&mut scenario[list]);
    }
    for list in ["claims", "slices", "device_classes"] {
        reverse(&mut scenario["dra"][list]);
    }
    for job in scenario["jobs"].as_array_mut().into_iter().flatten() {
        reverse(&mut job["tasks"]);
        reverse_groups(&mut job["subgroups"]);
    }
    without_nothing(scenario)
}

fn reverse(list: &mut Value) {
    if let Some(list) = list.as_array_mut() {
        list.reverse();
    }
}

fn reverse_groups(group: &mut Value) {
    reverse(&mut group["pod_sets"]);
    reverse(&mut group["groups"]);
    for inner in group["groups"].as_array_mut().into_iter().flatten() {
        reverse_groups(inner);
    }
}

/// Adds a prefix to the names of all nodes, queues, jobs, pods, claims and pod sets.
pub(crate) fn renamed(scenario: &Value) -> Value {
    let mut scenario = scenario.clone();
    for list in ["nodes", "queues", "jobs"] {
        each(&mut scenario[list], |one| prefix(&mut one["name"]));
    }
    each(&mut scenario["nodes"], |node| {
        prefix(&mut node["labels"]["kai.scheduler/type"]);
    });
    each(&mut scenario["queues"], |queue| {
        prefix(&mut queue["parent"])
    });
    each(&mut scenario["jobs"], rename_job);
    let dra = &mut scenario["dra"];
    each(&mut dra["slices"], |slice| prefix(&mut slice["node"]));
    each(&mut dra["claims"], |claim| {
        prefix(&mut claim["name"]);
        prefix(&mut claim["labels"]["kai.scheduler/queue"]);
        let devices = &mut claim["status"]["allocation"]["devices"]["results"];
        each(devices, |device| prefix(&mut device["pool"]));
    });
    let expected = &mut scenario["expected"];
    for map in ["jobs", "tasks", "nodes"] {
        prefix_keys(&mut expected[map]);
        for one in expected[map]
            .as_object_mut()
            .into_iter()
            .flat_map(Map::values_mut)
        {
            prefix(&mut one["node"]);
        }
    }
    without_nothing(scenario)
}

/// Removes null fields. A lookup of a missing field has created them.
fn without_nothing(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            fields
                .map(|(name, value)| (name, without_nothing(value)))
                .collect()
        }
        Value::Array(values) => values.into_iter().map(without_nothing).collect(),
        other => other,
    }
}

fn rename_job(job: &mut Value) {
    prefix(&mut job["queue"]);
    rename_sets(&mut job["subgroups"]);
    each(&mut job["tasks"], |task| {
        if task["subgroup"].is_null() {
            task["subgroup"] = "default".into();
        }
        for field in ["id", "subgroup", "node"] {
            prefix(&mut task[field]);
        }
        for list in ["resource_claims", "node_affinity"] {
            each(&mut task[list], prefix);
        }
    });
}

fn rename_sets(group: &mut Value) {
    each(&mut group["pod_sets"], |set| prefix(&mut set["name"]));
    each(&mut group["groups"], |inner| {
        prefix(&mut inner["name"]);
        rename_sets(inner);
    });
}

fn each(list: &mut Value, of: impl FnMut(&mut Value)) {
    list.as_array_mut().into_iter().flatten().for_each(of);
}

fn prefix(name: &mut Value) {
    if let Some(text) = name.as_str().filter(|text| !text.is_empty()) {
        *name = format!("n-{text}").into();
    }
}

fn prefix_keys(map: &mut Value) {
    if let Some(map) = map.as_object_mut() {
        let old = std::mem::take(map);
        map.extend(
            old.into_iter()
                .map(|(name, one)| (format!("n-{name}"), one)),
        );
    }
}
