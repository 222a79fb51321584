//! How often something changed that grouping rules read.

use std::collections::BTreeMap;

use apportion_groups::ObjectView;
use serde_json::Value;

/// Kinds that no grouping rule reads.
const APART: &[&str] = &[
    "Pod",
    "Node",
    "Namespace",
    "GpuNode",
    "NodeResourceTopology",
    "Queue",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "StorageClass",
    "CSIDriver",
    "CSIStorageCapacity",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourceSlice",
    "DeviceClass",
];

/// How often something changed that grouping rules read: by namespace, and cluster-wide without a name.
#[derive(Debug, Default)]
pub struct ChangeCounters {
    spaces: BTreeMap<String, u64>,
    /// The age of each PodGroup that exists.
    pod_groups: BTreeMap<String, BTreeMap<String, u64>>,
    /// How many changes of PodGroups there were.
    changes: u64,
}

impl ChangeCounters {
    pub(crate) fn of(&self, namespace: &str) -> (u64, u64) {
        let age = |name| self.spaces.get(name).copied().unwrap_or(0);
        (age(""), age(namespace))
    }

    /// The age of a PodGroup, unique to its version; zero if there is none.
    pub fn of_group(&self, namespace: &str, name: &str) -> u64 {
        let found = self.pod_groups.get(namespace).and_then(|all| all.get(name));
        found.copied().unwrap_or(0)
    }

    fn record_group(&mut self, group: ObjectView<'_>, is_there: bool) {
        let named = self.pod_groups.entry(group.namespace().to_owned());
        let named = named.or_default();
        if is_there {
            self.changes += 1;
            named.insert(group.name().to_owned(), self.changes);
        } else {
            named.remove(group.name());
        }
        self.pod_groups.retain(|_, named| !named.is_empty());
    }

    /// Records a change of an object. One side is `None` if it came or went.
    pub fn record(&mut self, before: Option<ObjectView<'_>>, after: Option<ObjectView<'_>>) {
        let object = before.or(after);
        let Some(object) = object.filter(|one| !APART.contains(&one.kind())) else {
            return;
        };
        let both = before.zip(after);
        if both.is_some_and(|(before, after)| is_equal(before, after)) {
            return;
        }
        if object.kind() == "PodGroup" {
            return self.record_group(object, after.is_some());
        }
        *self
            .spaces
            .entry(object.namespace().to_owned())
            .or_default() += 1;
    }
}

/// Whether nothing changed but the status, which no rule reads.
fn is_equal(before: ObjectView<'_>, after: ObjectView<'_>) -> bool {
    const VERSIONS: &[&str] = &["resourceVersion", "generation"];
    let (before, after) = (before.read_apart(), after.read_apart());
    is_same_without(&before, &after, &["metadata", "status"])
        && is_same_without(&before["metadata"], &after["metadata"], VERSIONS)
}

fn is_same_without(before: &Value, after: &Value, fields: &[&str]) -> bool {
    let rest = |json| {
        let all = Value::as_object(json).into_iter().flatten();
        all.filter(|(field, _)| !fields.contains(&field.as_str()))
    };
    rest(before).eq(rest(after))
}
