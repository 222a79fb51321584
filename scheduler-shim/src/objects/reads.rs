//! What pods and nodes say by themselves, read once and kept until they change.
//!
//! A round looks at every pod of the cluster, and most of them are as they were in the round before. What
//! depends on one object alone is read when that object comes, because the objects themselves are kept as text.
//! The group of a pod depends on its owners and on
//! PodGroups, too: it is kept as long as nothing of its namespace and nothing cluster-wide changes that such
//! rules look at, and not at all where the rule counted other pods.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apportion_abi::names::{ANNOTATION_RESERVED, LABEL_RESERVATION};
use apportion_admission::ignored;
use apportion_groups::{Object, PodGroup, Settings};
use apportion_policy::cluster::{Cards, Node, Status, Task};
use serde_json::Value;

use super::inventory::{Inventory, called};
use super::occupancy::Holds;
use super::remark::{Remark, Remarks};
use super::{admission, cards, clock, groups, jobs, nodes, pods, quantity, requests, volumes};

/// Who decides on pods that do not say it.
const DEFAULT: &str = "default-scheduler";
/// Kinds by which no pod is grouped.
const APART: &[&str] = &[
    "Pod",
    "Node",
    "Namespace",
    "GpuNode",
    "Queue",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "StorageClass",
    "CSIDriver",
    "CSIStorageCapacity",
];

/// What the label says of the pods by which KAI keeps a card for those that share it; the sharers hold it here.
const RESERVATION: &str = "kai-resource-reservation";

/// A pod, read.
#[derive(Debug)]
pub(crate) struct PodRead {
    /// Who decides on it.
    pub(crate) scheduler: Box<str>,
    pub(crate) status: Status,
    /// The node that it is bound to.
    node: Option<Box<str>>,
    pub(crate) created: Option<Duration>,
    pub(crate) started: Option<Duration>,
    /// Its cards with their bytes, as they are written on it.
    pub(crate) written: Option<Vec<(String, u64)>>,
    /// Whether it says that nobody may be evicted for it.
    pub(crate) is_modest: bool,
    /// Whether it is one of KAI's that keep a card for others, and the card that it says it keeps.
    pub(crate) is_reservation: bool,
    pub(crate) keeps: Option<Box<str>>,
    /// What it would rather have of its node, as it says it.
    pub(crate) preferred: Vec<Value>,
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
        for message in ignored::durations(pod.json()) {
            let object = called("Pod", pod.namespace(), pod.name());
            remarks.note(object, format!("its {message}"));
        }
        let task = match requests::unreadable(pod) {
            Some(why) => Err(why),
            None => (cards.clone()).map(|cards| pods::task(pod, cards, &mut remarks)),
        };
        let holds = Holds::of(pod);
        let spec = &pod.json()["spec"];
        Self {
            scheduler: spec["schedulerName"].as_str().unwrap_or(DEFAULT).into(),
            status: pods::status(pod),
            node: pods::node(pod).map(Box::from),
            created: clock::field(pod, "/metadata/creationTimestamp"),
            started: clock::field(pod, "/status/startTime"),
            written: cards::written(pod),
            is_modest: spec["preemptionPolicy"] == "Never",
            is_reservation: pod.label(LABEL_RESERVATION) == Some(RESERVATION),
            keeps: pod.annotation(ANNOTATION_RESERVED).map(Box::from),
            preferred: admission::preferred(pod),
            task,
            cards,
            cpu_millis: quantity::whole(requests::total(pod, "cpu") * 1000.0),
            memory: quantity::whole(requests::total(pod, "memory")),
            wish: admission::key(pod, &holds, volumes::concerns(pod)),
            holds,
            notes: remarks.0.into_iter().collect(),
            group: Mutex::default(),
        }
    }

    /// The node that it is bound to.
    pub(crate) fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        jobs::is_over(self.status)
    }

    /// Whether it is on this node, and has not ended.
    pub(crate) fn is_on(&self, node: &str) -> bool {
        self.node() == Some(node) && !self.is_over()
    }

    /// The task, or why it may not be one.
    pub(crate) fn task(&self, remarks: &mut Remarks) -> Result<Task, String> {
        remarks.0.extend(self.notes.iter().cloned());
        self.task.clone()
    }

    /// What others see of it; none where it makes no sense.
    pub(crate) fn seen(&self) -> Option<&Task> {
        self.task.as_ref().ok()
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
        // Read apart: a burst brings thousands, and what was read of each goes at once.
        let apart = pod.read_apart();
        let group = groups::group_of(Object::new(&apart), among, lookup, settings);
        let group = Arc::new(group.map(without_bulk));
        let read = Grouped {
            ages,
            group: group.clone(),
        };
        *known = Some(read).filter(|_| !lookup.counted_pods());
        group
    }
}

/// A group without most of what it inherits, which is for the object that somebody else may write of it.
fn without_bulk(group: PodGroup) -> PodGroup {
    let annotations = group.annotations.into_iter();
    let is_read = |(key, _): &(String, String)| jobs::READ.contains(&key.as_str());
    PodGroup {
        labels: BTreeMap::new(),
        annotations: annotations.filter(is_read).collect(),
        ..group
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
