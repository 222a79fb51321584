//! What pods and nodes say by themselves, read once and kept until they change.
//!
//! A round looks at every pod of the cluster, and most of them are as they were in the round before. What
//! depends on one object alone is read when that object comes. The group of a pod depends on its owners and on
//! PodGroups, too: it is kept as long as nothing of its namespace and nothing cluster-wide changes that such
//! rules look at, and not at all where the rule counted other pods.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use apportion_groups::{Object, PodGroup, Settings};
use apportion_policy::cluster::{Cards, Node, Task};
use serde_json::Value;

use super::inventory::Inventory;
use super::occupancy::{self, Holds};
use super::remark::{Remark, Remarks};
use super::{admission, cards, groups, nodes, pods, quantity, requests, volumes};

/// Kinds by which no pod is grouped.
const APART: &[&str] = &[
    "Pod",
    "Node",
    "GpuNode",
    "Queue",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "StorageClass",
    "CSIDriver",
    "CSIStorageCapacity",
];

/// A pod, read.
#[derive(Debug)]
pub(crate) struct PodRead {
    /// What it wants of cards.
    pub(crate) cards: Result<Cards, String>,
    /// The task that it is, without its set and its wishes about nodes; or why it may not exist.
    task: Result<Task, String>,
    /// What it holds beside cards.
    pub(crate) holds: Holds,
    /// Processors and memory.
    pub(crate) cpu_millis: i64,
    pub(crate) memory: i64,
    /// What it wants of its node, as a text that is the same for pods that want the same.
    pub(crate) wish: String,
    notes: Vec<Remark>,
    group: Mutex<Option<Grouped>>,
}

type Group = Arc<Result<PodGroup, String>>;

/// A group, and how old everything was that it was read from.
#[derive(Debug)]
struct Grouped {
    ages: (u64, u64),
    group: Group,
}

impl PodRead {
    pub(crate) fn of(pod: Object<'_>) -> Self {
        let cards = cards::kept(pod, requests::cards(pod));
        let mut remarks = Remarks::default();
        let task = match requests::unreadable(pod) {
            Some(why) => Err(why),
            None => (cards.clone()).map(|cards| pods::task(pod, cards, &mut remarks)),
        };
        let is_special = occupancy::concerns(pod) || volumes::concerns(pod);
        Self {
            task,
            cards,
            holds: Holds::of(pod),
            cpu_millis: quantity::whole(requests::total(pod, "cpu") * 1000.0),
            memory: quantity::whole(requests::total(pod, "memory")),
            wish: admission::key(pod, is_special),
            notes: remarks.0.into_iter().collect(),
            group: Mutex::default(),
        }
    }

    /// The task, or why it may not be one.
    pub(crate) fn task(&self, remarks: &mut Remarks) -> Result<Task, String> {
        remarks.0.extend(self.notes.iter().cloned());
        self.task.clone()
    }

    /// The group that the pod is in.
    pub(crate) fn group(&self, pod: Object<'_>, among: &Inventory, settings: &Settings) -> Group {
        let mut known = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        let ages = among.ages.of(pod.namespace());
        if let Some(known) = known.as_ref().filter(|known| known.ages == ages) {
            return known.group.clone();
        }
        let lookup = among.lookup();
        lookup.counted_pods();
        let group = Arc::new(groups::group_of(pod, among, lookup, settings));
        let read = Grouped {
            ages,
            group: group.clone(),
        };
        *known = Some(read).filter(|_| !lookup.counted_pods());
        group
    }
}

/// A node, read.
#[derive(Debug)]
pub(crate) struct NodeRead {
    node: Node,
    /// What is to be said where its cards are not listed.
    notes: Vec<Remark>,
}

impl NodeRead {
    pub(crate) fn of(object: Object<'_>) -> Self {
        let mut remarks = Remarks::default();
        Self {
            node: nodes::node(object, &mut remarks),
            notes: remarks.0.into_iter().collect(),
        }
    }

    /// The node, whole.
    pub(crate) fn node(&self, is_listed: bool, remarks: &mut Remarks) -> Node {
        if !is_listed {
            remarks.0.extend(self.notes.iter().cloned());
        }
        self.node.clone()
    }
}

/// How often something changed by which pods are grouped: by namespace, and cluster-wide without a name.
#[derive(Debug, Default)]
pub(crate) struct Ages(BTreeMap<String, u64>);

impl Ages {
    fn of(&self, namespace: &str) -> (u64, u64) {
        let age = |name| self.0.get(name).copied().unwrap_or(0);
        (age(""), age(namespace))
    }

    /// Notes that an object is another than it was, one of both where it came or went.
    pub(crate) fn note(&mut self, before: Option<Object<'_>>, after: Option<Object<'_>>) {
        let object = before.or(after);
        let Some(object) = object.filter(|one| !APART.contains(&one.kind())) else {
            return;
        };
        let both = before.zip(after);
        if !both.is_some_and(|(before, after)| says_the_same(before, after)) {
            *self.0.entry(object.namespace().to_owned()).or_default() += 1;
        }
    }
}

/// Whether nothing changed but a status, which no rule looks at.
fn says_the_same(before: Object<'_>, after: Object<'_>) -> bool {
    const VERSIONS: &[&str] = &["resourceVersion", "generation"];
    let (before, after) = (before.json(), after.json());
    is_same_without(before, after, &["metadata", "status"])
        && is_same_without(&before["metadata"], &after["metadata"], VERSIONS)
}

fn is_same_without(before: &Value, after: &Value, fields: &[&str]) -> bool {
    let rest = |json| {
        let all = Value::as_object(json).into_iter().flatten();
        all.filter(|(field, _)| !fields.contains(&field.as_str()))
    };
    rest(before).eq(rest(after))
}

#[cfg(test)]
mod anew;
