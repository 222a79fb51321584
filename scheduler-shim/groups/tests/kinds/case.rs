//! A pod with its owners in a small cluster, built step by step.

use apportion_groups::{
    DerivedPodGroup, Grouping, GroupingError, GroupingInput, GroupingSettings, ObjectStore,
    ObjectView, group,
};
use serde_json::{Value, json};

/// A pod with its owners (the nearest first) in a cluster.
#[derive(Default)]
pub(crate) struct GroupingCase {
    pub(crate) pod: Value,
    pub(crate) owners: Vec<Value>,
    pub(crate) others: Vec<Value>,
    pub(crate) settings: GroupingSettings,
}

impl GroupingCase {
    pub(crate) fn of(owner: Value) -> Self {
        Self {
            pod: json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "lab", "uid": "9"}}),
            owners: vec![owner],
            ..Self::default()
        }
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.pod["metadata"]["labels"][key] = value.into();
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.pod["metadata"]["annotations"][key] = value.into();
        self
    }

    pub(crate) fn beside(mut self, other: Value) -> Self {
        self.others.push(other);
        self
    }

    pub(crate) fn grouping(&self) -> Result<Grouping, GroupingError> {
        let objects: ObjectStore = self.others.iter().cloned().collect();
        let chain = self.owners.iter().map(ObjectView::new).collect();
        group(&GroupingInput::new(
            ObjectView::new(&self.pod),
            chain,
            &objects,
            &self.settings,
        ))
    }

    pub(crate) fn group(&self) -> DerivedPodGroup {
        match self.grouping() {
            Ok(Grouping::Derived(group)) => *group,
            other => panic!("a derived group was expected, not {other:?}"),
        }
    }

    pub(crate) fn complaint(&self) -> String {
        self.grouping().expect_err("it is malformed").to_string()
    }
}

pub(crate) fn owner(api_version: &str, kind: &str, spec: Value) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "spec": spec,
        "metadata": {"name": "o", "namespace": "lab", "uid": "7"}})
}

pub(crate) fn with(mut owner: Value, field: &str, key: &str, value: &str) -> Value {
    owner["metadata"][field][key] = value.into();
    owner
}

pub(crate) fn class(name: &str) -> Value {
    json!({"kind": "PriorityClass", "metadata": {"name": name}})
}

/// Name, minimum and pods of each part.
pub(crate) fn parts(group: &DerivedPodGroup) -> Vec<(&str, u32, usize)> {
    let parts = group.sub_groups.iter();
    parts
        .map(|part| (part.name.as_str(), part.min_member, part.pods.len()))
        .collect()
}
