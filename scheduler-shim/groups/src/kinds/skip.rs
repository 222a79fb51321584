//! Owners that only wrap another one: the next owner below decides.
//!
//! What people write on the wrapper (queue, priority) is meant for what it wraps, so its labels and annotations
//! go down where nothing else is said, and so do the cluster's defaults for the wrapper's kind.

use serde_json::{Map, Value};

use crate::group::PodGroup;
use crate::grouping::group_by;
use crate::malformed::Malformed;
use crate::names::{LABEL_PREEMPTIBILITY, LABEL_PRIORITY};
use crate::object::Object;
use crate::table::{Row, row_of};
use crate::workload::Workload;

pub(crate) fn below(_: &Row<'_>, workload: &Workload<'_>) -> Result<PodGroup, Malformed> {
    let skipped = workload.owner;
    let mut chain = workload.chain.clone();
    if chain.last().is_some_and(|last| is_same(*last, skipped)) {
        chain.pop();
    }
    let partial = chain.pop().unwrap_or(workload.pod);
    let mut next = whole(workload, partial).json().clone();
    inherit_from_skipped(&mut next, skipped);
    add_defaults(&mut next, workload);
    let next = Object::new(&next);
    chain.push(next);
    let inner = Workload {
        owner: next,
        chain,
        ..workload.clone()
    };
    group_by(row_of(next), &inner)
}

/// A chain holds what an owner reference knows of an owner, of which the namespace is no part.
fn is_same(last: Object<'_>, skipped: Object<'_>) -> bool {
    last.kind() == skipped.kind() && last.name() == skipped.name()
}

/// The whole object, where only its metadata is in the chain.
fn whole<'a>(workload: &Workload<'a>, partial: Object<'a>) -> Object<'a> {
    let namespace = match partial.namespace() {
        "" => workload.namespace(),
        namespace => namespace,
    };
    workload
        .objects
        .find(partial.kind(), namespace, partial.name())
        .unwrap_or(partial)
}

/// Copies the labels and annotations of a skipped owner down, where `next` has none of that key.
pub fn inherit_from_skipped(next: &mut Value, skipped: Object<'_>) {
    for field in ["labels", "annotations"] {
        let given = skipped.map(&["metadata", field]).into_iter().flatten();
        for (key, value) in given {
            add(next, field, key, value.clone());
        }
    }
}

fn add_defaults(next: &mut Value, workload: &Workload<'_>) {
    let Some(default) = workload.kind_default() else {
        return;
    };
    if !default.priority_class.is_empty() {
        let class = Value::from(default.priority_class.as_str());
        add(next, "labels", LABEL_PRIORITY, class);
    }
    if let Some(preemptibility) = default.preemptibility {
        let text = Value::from(preemptibility.text());
        add(next, "labels", LABEL_PREEMPTIBILITY, text);
    }
}

fn add(object: &mut Value, field: &str, key: &str, value: Value) {
    let metadata = child(object, "metadata");
    let Some(Value::Object(entries)) = metadata.map(|metadata| child_of(metadata, field)) else {
        return;
    };
    entries.entry(key).or_insert(value);
}

fn child<'a>(object: &'a mut Value, field: &str) -> Option<&'a mut Map<String, Value>> {
    child_of(object.as_object_mut()?, field).as_object_mut()
}

/// The object in a field, made if the field is absent or null.
fn child_of<'a>(object: &'a mut Map<String, Value>, field: &str) -> &'a mut Value {
    let child = object.entry(field).or_insert(Value::Null);
    if child.is_null() {
        *child = Value::Object(Map::new());
    }
    child
}
