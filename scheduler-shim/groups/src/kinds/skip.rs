//! Owners that only wrap another one: the next owner below decides.
//!
//! Queue and priority on the wrapper are meant for what it wraps. So its labels and annotations are passed down
//! where nothing else is set, and so are the cluster's defaults for the wrapper's kind.

use serde_json::{Map, Value};

use crate::error::GroupingError;
use crate::group::DerivedPodGroup;
use crate::grouping::group_by;
use crate::names::{LABEL_PREEMPTIBILITY, LABEL_PRIORITY};
use crate::object::ObjectView;
use crate::table::{OwnerKindEntry, row_of};
use crate::workload::GroupingInput;

/// Continues the chain without the skipped owner. The rule of the next owner sees all that is passed down. If that
/// kind has no rule, so that the terms of all owners count, those include only the defaults.
pub(crate) fn below(
    _: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let skipped = workload.owner;
    let chain = workload.chain.as_slice();
    let next = match chain {
        [.., next, _] => *next,
        _ => workload.pod,
    };
    let mut passed = next.json().clone();
    add_defaults(&mut passed, workload);
    let mut whole = whole(workload, next).json().clone();
    add_defaults(&mut whole, workload);
    inherit_from_skipped(&mut whole, skipped);
    let owner = ObjectView::new(&whole);
    let chain = match chain {
        [before @ .., _, _] => [before, &[ObjectView::new(&passed)]].concat(),
        _ => Vec::new(),
    };
    let inner = GroupingInput {
        owner,
        chain,
        ..workload.clone()
    };
    group_by(row_of(owner), &inner)
}

/// The whole object, if the chain has only its metadata.
fn whole<'a>(workload: &GroupingInput<'a>, partial: ObjectView<'a>) -> ObjectView<'a> {
    let namespace = match partial.namespace() {
        "" => workload.namespace(),
        namespace => namespace,
    };
    workload
        .objects
        .find(partial.kind(), namespace, partial.name())
        .unwrap_or(partial)
}

/// Copies the labels and annotations of a skipped owner to `next`, except for keys that it has.
pub fn inherit_from_skipped(next: &mut Value, skipped: ObjectView<'_>) {
    for field in ["labels", "annotations"] {
        let given = skipped.map(&["metadata", field]).into_iter().flatten();
        for (key, value) in given {
            add(next, field, key, value.clone());
        }
    }
}

fn add_defaults(next: &mut Value, workload: &GroupingInput<'_>) {
    let Some(default) = workload.default_of(workload.owner) else {
        return;
    };
    if workload.objects.has_priority_class(&default.priority_class) {
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

/// The object in a field; created if the field is absent or null.
fn child_of<'a>(object: &'a mut Map<String, Value>, field: &str) -> &'a mut Value {
    let child = object.entry(field).or_insert(Value::Null);
    if child.is_null() {
        *child = Value::Object(Map::new());
    }
    child
}
