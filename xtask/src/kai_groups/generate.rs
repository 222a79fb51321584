//! Random questions: an oracle or a seed with a few changes.
//!
//! There are two kinds of change. Values of the objects are removed, set to zero, to a negative number or to another
//! type, or duplicated. And what the rules read ([`vocabulary`]) is added: labels and annotations on the pod, its
//! owners and templates, fields that are usually absent, PodGroups of earlier versions.

use serde_json::{Map, Value, json};

mod mutate;
mod rng;
mod vocabulary;

use mutate::damage;
use rng::QuestionRng;

/// Owners of every kind that has a rule; the repository's oracles lack some.
const SEEDS: &str = include_str!("../../kai/groups_seeds.json");
/// Fields that groupers read, with values.
const FIELDS: &str = include_str!("../../kai/groups_fields.json");

/// A field that some groupers read.
#[derive(serde::Deserialize)]
struct GrouperField {
    groupers: Vec<String>,
    /// Its path in a question; `~` stands for a slash in a key.
    place: String,
    values: Vec<Value>,
}

/// Draws `count` questions.
pub(super) fn questions(oracles: &[Value], count: u32, seed: u64) -> Vec<Value> {
    let seeds: Value = serde_json::from_str(SEEDS).expect("the file of seeds is JSON");
    let own = seeds["cases"].as_array().cloned().unwrap_or_default();
    // Our seeds are fewer than the oracles, so they count twice.
    let all: Vec<&Value> = oracles.iter().chain(&own).chain(&own).collect();
    let fields: Vec<GrouperField> =
        serde_json::from_str(FIELDS).expect("the file of fields is JSON");
    let mut dice = QuestionRng::new(seed);
    (0..count)
        .map(|_| {
            let mut question = (*dice.of(&all)).clone();
            name_kinds(&mut question);
            for _ in 0..1 + dice.below(4) {
                change(&mut question, &fields, &mut dice);
            }
            question
        })
        .collect()
}

/// A step of an oracle with the label keys, which an oracle leaves out if they are the default.
pub(super) fn with_keys(mut step: Value) -> Value {
    for (key, usual) in [
        ("queue_label_key", "kai.scheduler/queue"),
        ("node_pool_label_key", "kai.scheduler/node-pool"),
    ] {
        if step["settings"][key].is_null() {
            step["settings"][key] = usual.into();
        }
    }
    if step["grouper"] == "knative" && step["settings"]["gang_schedule"].is_null() {
        step["settings"]["gang_schedule"] = true.into();
    }
    step
}

/// Adds the kinds of objects, which tests leave out. Only items in a list of the API server have no kind.
fn name_kinds(question: &mut Value) {
    let objects = question["cluster_objects"].as_array_mut();
    for object in objects.into_iter().flatten() {
        if object["kind"] == "Revision" {
            object["apiVersion"] = "serving.knative.dev/v1".into();
        }
    }
    question["pod"]["apiVersion"] = "v1".into();
    question["pod"]["kind"] = "Pod".into();
    if ["podjob", "spark"]
        .map(Value::from)
        .contains(&question["grouper"])
        && let Some(owner) = question["owner"].as_object_mut()
    {
        owner.insert("apiVersion".to_owned(), "v1".into());
        owner.insert("kind".to_owned(), "Pod".into());
    }
}

fn change(question: &mut Value, fields: &[GrouperField], dice: &mut QuestionRng) {
    match dice.below(10) {
        0..3 => damage(question, dice),
        3..6 => label(question, dice),
        6..8 => set_fields(question, fields, dice),
        8 => remember(question, dice),
        _ => settle(question, dice),
    }
}

/// Extends a JSON pointer by a field.
fn deeper(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Sets a label or annotation that a rule reads.
fn label(question: &mut Value, dice: &mut QuestionRng) {
    let (field, key, values) = *dice.of(vocabulary::LABELS);
    let value = *dice.of::<&str>(values);
    let Some(object) = some_object(question, dice) else {
        return;
    };
    if let Some(entries) = child(object, "metadata").and_then(|metadata| child(metadata, field)) {
        match dice.below(8) {
            0 => drop(entries_of(entries).map(|map| map.remove(key))),
            _ => drop(entries_of(entries).map(|map| map.insert(key.to_owned(), value.into()))),
        }
    }
}

fn entries_of(value: &mut Value) -> Option<&mut Map<String, Value>> {
    value.as_object_mut()
}

/// The pod, an owner, a template of an owner, or another object.
fn some_object<'q>(question: &'q mut Value, dice: &mut QuestionRng) -> Option<&'q mut Value> {
    let part = *dice.of(&[
        "pod",
        "pod",
        "owner",
        "owner",
        "owner",
        "cluster_objects",
        "other_owners",
    ]);
    let mut place = format!("/{part}");
    if let Some(all) = question[part].as_array() {
        let index = dice.below(all.len());
        place = format!("{place}/{index}");
    }
    let mut templates = Vec::new();
    find_templates(question.pointer(&place)?, String::new(), &mut templates);
    if dice.below(2) == 0 && !templates.is_empty() {
        place += dice.of::<String>(&templates).as_str();
    }
    question
        .pointer_mut(&place)
        .filter(|found| found.is_object())
}

fn find_templates(value: &Value, pointer: String, found: &mut Vec<String>) {
    let Some(map) = value.as_object() else {
        if let Some(all) = value.as_array() {
            for (index, inner) in all.iter().enumerate() {
                find_templates(inner, format!("{pointer}/{index}"), found);
            }
        }
        return;
    };
    for (key, inner) in map {
        let place = deeper(&pointer, key);
        if matches!(key.as_str(), "template" | "workerTemplate") && inner.is_object() {
            found.push(place.clone());
        }
        find_templates(inner, place, found);
    }
}

/// Sets a field that the grouper reads, or a label if there is none.
fn set_fields(question: &mut Value, fields: &[GrouperField], dice: &mut QuestionRng) {
    let grouper = question["grouper"].as_str().unwrap_or_default().to_owned();
    let fitting = fields
        .iter()
        .filter(|field| field.groupers.contains(&grouper));
    let fitting: Vec<&GrouperField> = fitting.collect();
    if fitting.is_empty() {
        return label(question, dice);
    }
    let field = *dice.of(&fitting);
    set(question, &field.place, dice.of(&field.values).clone());
}

/// Sets the value at a path, and creates missing objects on the way. In a list the key is an index.
fn set(question: &mut Value, place: &str, value: Value) {
    let mut at = question;
    for key in place.split('/') {
        let key = &key.replace('~', "/");
        let next = match at {
            Value::Array(all) => key
                .parse::<usize>()
                .ok()
                .and_then(|index| all.get_mut(index)),
            other => child(other, key),
        };
        match next {
            Some(found) => at = found,
            None => return,
        }
    }
    *at = value;
}

fn child<'v>(value: &'v mut Value, key: &str) -> Option<&'v mut Value> {
    if value.is_null() {
        *value = json!({});
    }
    Some(value.as_object_mut()?.entry(key).or_insert(Value::Null))
}

/// Adds a PodGroup that may be one of an earlier version, a pod of the same job, or a priority class.
fn remember(question: &mut Value, dice: &mut QuestionRng) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let owner = &question["owner"]["metadata"];
    let pod = &question["pod"]["metadata"];
    let (of_owner, of_pod) = (text(&owner["name"]), text(&pod["name"]));
    let (uid, pod_uid) = (text(&owner["uid"]), text(&pod["uid"]));
    let cluster_first = question["cluster_objects"][0]["metadata"].clone();
    let cluster_name = text(&cluster_first["name"]);
    let names = [
        format!("pg-{of_owner}-{uid}"),
        format!("pg-{of_owner}-{uid}-work"),
        format!("pg-{of_owner}-{uid}-{}", dice.of(&["lead", "x", "worker"])),
        format!("pg-{of_pod}-{uid}"),
        format!("pg-{of_pod}-{pod_uid}"),
        format!("pg-{cluster_name}-{}", text(&cluster_first["uid"])),
    ];
    let name = dice.of(&names).clone();
    let namespace = text(&pod["namespace"]);
    let mut spec = json!({"minMember": 1});
    if dice.below(3) == 0 {
        spec["subGroups"] = json!([{"name": "a", "minMember": 1}]);
    }
    let kind = *dice.of(&["Pod", "Revision", "Job", "Pod"]);
    let references = json!([{"apiVersion": "v1", "kind": kind, "name": "x", "uid": "x"}]);
    let group = json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup", "spec": spec,
        "metadata": {"name": name, "namespace": namespace, "uid": "g", "ownerReferences": references}});
    let mut sibling = question["pod"].clone();
    sibling["metadata"]["name"] = format!("sibling-{}", dice.below(3)).into();
    let annotation = *dice.of(&[&names[0], &names[4], &names[5]]);
    let (place, value) = match dice.below(4) {
        0 => ("metadata/annotations/pod-group-name", annotation.clone()),
        1 => (
            "metadata/deletionTimestamp",
            "2026-01-02T03:04:05Z".to_owned(),
        ),
        2 => (
            "metadata/labels/training.kubeflow.org~job-role",
            "launcher".to_owned(),
        ),
        _ => ("metadata/uid", "sibling".to_owned()),
    };
    set(&mut sibling, place, value.into());
    sibling["kind"] = "Pod".into();
    sibling["apiVersion"] = "v1".into();
    let object = match dice.below(3) {
        0 => sibling,
        _ => group,
    };
    if question["cluster_objects"].is_null() {
        question["cluster_objects"] = json!([]);
    }
    let who = |one: &Value| (one["kind"].clone(), one["metadata"]["name"].clone());
    if let Some(all) = question["cluster_objects"].as_array_mut()
        && !all.iter().any(|one| who(one) == who(&object))
    {
        all.push(object);
    }
}

/// Changes the settings of the grouper.
fn settle(question: &mut Value, dice: &mut QuestionRng) {
    match dice.below(5) {
        0 => question["settings"]["gang_schedule"] = (dice.below(2) == 0).into(),
        1 => question["settings"]["search_for_legacy_pod_groups"] = (dice.below(2) == 0).into(),
        2 | 3 => {
            let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": {"name": dice.of(&["high", "build", "low"])}});
            if question["cluster_objects"].is_null() {
                question["cluster_objects"] = json!([]);
            }
            if let Some(all) = question["cluster_objects"].as_array_mut() {
                all.push(class);
            }
        }
        _ => {
            if let Some(all) = question["cluster_objects"].as_array_mut()
                && !all.is_empty()
            {
                all.remove(dice.below(all.len()));
            }
        }
    }
}
