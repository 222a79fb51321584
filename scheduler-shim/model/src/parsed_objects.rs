//! What pods and nodes say by themselves, parsed once and kept until they change.
//!
//! A round looks at every pod of the cluster, and most are as they were in the last round. What depends on one object
//! alone is parsed when that object comes, because the objects themselves are kept as text. A pod's group also
//! depends on its owners and on PodGroups. It is cached until something in its namespace or cluster-wide changes that
//! grouping rules read, and not at all if the rule counted other pods. There are as many PodGroups as pods, so only
//! those count that the rules read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apportion_abi::names::{
    ANNOTATION_GROUP, ANNOTATION_RESERVED, LABEL_RESERVATION, LABEL_SUBGROUP, RESOURCE_SLOT,
};
use apportion_admission::ignored;
use apportion_groups::{GroupingSettings, ObjectStore, ObjectView};
use apportion_policy::cluster::{Node, Task, TaskGpuRequest, TaskStatus};
use serde_json::Value;

use super::cards::CardShare;
use super::inventory::{ObjectInventory, called};
use super::object_warnings::{ObjectWarning, ObjectWarnings};
use super::occupancy::PodOccupancy;
use super::pod_group_terms::PodGroupTerms;
use super::{
    admission, cards, clock, config_maps, group_objects, groups, jobs, nodes, pods, requests,
    volumes,
};

/// The scheduler of pods that name none.
const DEFAULT: &str = "default-scheduler";
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
];

/// The `app` label of KAI's reservation pods, each of which keeps a card for pods that share it. Here the sharing
/// pods hold the card.
const RESERVATION: &str = "kai-resource-reservation";

/// The `app` label of KAI's pod grouper, by its version.
const GROUPERS: &[&str] = &["pod-grouper", "podgrouper"];

/// A parsed pod.
#[derive(Debug)]
pub struct ParsedPod {
    /// Its scheduler.
    pub scheduler: Box<str>,
    /// Its status for the policy.
    pub status: TaskStatus,
    /// The node that it is bound to.
    node: Option<Box<str>>,
    /// When it was created.
    pub created: Option<Duration>,
    /// When the kubelet saw it first.
    pub started: Option<Duration>,
    /// Its cards with bytes, as written on it.
    pub written: Option<Vec<CardShare>>,
    /// Whether its preemption policy forbids to evict others for it.
    pub is_modest: bool,
    /// Whether it is one of KAI's reservation pods, and the card that it says it keeps.
    pub is_reservation: bool,
    /// The card that a reservation pod of KAI keeps.
    pub keeps: Option<Box<str>>,
    /// Whether it is KAI's pod grouper.
    pub is_grouper: bool,
    /// The group and the subgroup written on it.
    pub membership: (Option<Box<str>>, Option<Box<str>>),
    /// Its preferred node affinity terms.
    pub preferred: Vec<Value>,
    /// What it requests of cards.
    pub cards: Result<TaskGpuRequest, String>,
    /// Why it would run without its share of a card: it has no slot.
    slotless: Option<Box<str>>,
    /// Its task, without its set and its requirements about nodes; or why it is invalid.
    task: Result<Task, String>,
    /// What it holds beside cards.
    pub holds: PodOccupancy,
    /// CPU and memory.
    pub cpu_millis: i64,
    /// Memory that it requests, in bytes.
    pub memory: i64,
    /// A key for what it requires of its node; the same for pods with the same requirements.
    pub wish: Arc<str>,
    /// The ConfigMaps without which it can't start.
    pub config_maps: Box<[Box<str>]>,
    notes: Vec<ObjectWarning>,
    group: Mutex<Option<CachedGroup>>,
}

type PodGroupResult = Arc<Result<PodGroupTerms, String>>;

/// A group derived from a pod's owners, with a stamp of its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedGroup {
    /// The name of the group.
    pub name: Arc<str>,
    /// The subgroup that holds the pod.
    pub part: Option<Arc<str>>,
    /// Equal for objects that say the same.
    pub stamp: u64,
}

/// A group, and the ages of everything that it was read from.
#[derive(Debug)]
struct CachedGroup {
    ages: (u64, u64),
    /// PodGroups by namespace and name, with their ages.
    pod_groups: Vec<(String, String, u64)>,
    group: PodGroupResult,
    derived: Option<DerivedGroup>,
}

impl CachedGroup {
    fn is_of(&self, namespace: &str, ages: &ChangeCounters) -> bool {
        let mut pod_groups = self.pod_groups.iter();
        self.ages == ages.of(namespace)
            && pod_groups.all(|(space, name, age)| ages.of_group(space, name) == *age)
    }
}

impl ParsedPod {
    /// Parses a pod.
    pub fn of(pod: ObjectView<'_>) -> Self {
        let cards = cards::kept(pod, requests::cards(pod));
        let mut warnings = ObjectWarnings::default();
        let said = ignored::durations(pod.json()).into_iter();
        for message in said.chain(requests::growth(pod)) {
            let object = called("Pod", pod.namespace(), pod.name());
            warnings.note(object, format!("its {message}"));
        }
        let task = match requests::unreadable(pod) {
            Some(why) => Err(why),
            None => (cards.clone()).map(|cards| pods::task(pod, cards, &mut warnings)),
        };
        let holds = PodOccupancy::of(pod);
        let shares =
            matches!(cards, Ok(TaskGpuRequest::Shared { .. })) && pods::node(pod).is_none();
        let slotless = if shares {
            requests::without_slot(pod, RESOURCE_SLOT)
        } else {
            None
        };
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
            is_grouper: (pod.label(LABEL_RESERVATION)).is_some_and(|app| GROUPERS.contains(&app)),
            membership: (
                pod.annotation(ANNOTATION_GROUP).map(Box::from),
                pod.label(LABEL_SUBGROUP).map(Box::from),
            ),
            preferred: admission::preferred(pod),
            task,
            cards,
            slotless: slotless.map(Into::into),
            cpu_millis: requests::total(pod, "cpu").millis(),
            memory: requests::total(pod, "memory").units(),
            wish: admission::key(pod, &holds, volumes::concerns(pod)).into(),
            config_maps: config_maps::needed(pod),
            holds,
            notes: warnings.0.into_iter().collect(),
            group: Mutex::default(),
        }
    }

    /// The node that it is bound to.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        jobs::is_over(self.status)
    }

    /// Whether it is terminating.
    pub fn is_ending(&self) -> bool {
        self.status == TaskStatus::Releasing
    }

    /// Whether it is on this node, and has not ended.
    pub fn is_on(&self, node: &str) -> bool {
        self.node() == Some(node) && !self.is_over()
    }

    /// Why it would run without its share of a card if it was bound now.
    pub fn slotless(&self) -> Option<&str> {
        let waits = matches!(self.status, TaskStatus::Pending | TaskStatus::Gated);
        self.slotless.as_deref().filter(|_| waits)
    }

    /// The task, or why the pod is invalid.
    pub fn task(&self, warnings: &mut ObjectWarnings) -> Result<Task, String> {
        warnings.0.extend(self.notes.iter().cloned());
        self.task.clone()
    }

    /// What others see of it; `None` if it is invalid.
    pub fn seen(&self) -> Option<&Task> {
        self.task.as_ref().ok()
    }

    /// The group that the pod is in.
    pub(crate) fn group(
        &self,
        pod: ObjectView<'_>,
        among: &ObjectInventory,
        settings: &GroupingSettings,
    ) -> PodGroupResult {
        self.grouped(pod, among, settings, |grouped| grouped.group.clone())
    }

    /// The group derived from its owners, unless somebody else makes its group.
    pub fn derived(
        &self,
        pod: ObjectView<'_>,
        among: &ObjectInventory,
        settings: &GroupingSettings,
    ) -> Option<DerivedGroup> {
        self.grouped(pod, among, settings, |grouped| grouped.derived.clone())
    }

    fn grouped<T>(
        &self,
        pod: ObjectView<'_>,
        among: &ObjectInventory,
        settings: &GroupingSettings,
        asked: impl FnOnce(&CachedGroup) -> T,
    ) -> T {
        let mut known = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of_now = |known: &&CachedGroup| known.is_of(pod.namespace(), &among.ages);
        if let Some(known) = known.as_ref().filter(is_of_now) {
            return asked(known);
        }
        let (read, is_lasting) = read_group(pod, among, settings);
        let answer = asked(&read);
        *known = Some(read).filter(|_| is_lasting);
        answer
    }
}

/// The group of a pod, and whether it can be cached until something with a known age changes.
fn read_group(
    pod: ObjectView<'_>,
    among: &ObjectInventory,
    settings: &GroupingSettings,
) -> (CachedGroup, bool) {
    let lookup: &ObjectStore = among.lookup();
    // Parsed apart from the cache: a burst brings thousands, and each is dropped at once.
    let apart = pod.read_apart();
    let pod = ObjectView::new(&apart);
    let (found, trace) = lookup.traced(|| groups::group_of(pod, among, lookup, settings));
    let is_lasting = !trace.looked_around && !found.is_awaited;
    let mut looked_for = trace.pod_groups;
    looked_for.sort_unstable();
    looked_for.dedup();
    let with_age = |(space, name): (String, String)| {
        let age = among.ages.of_group(&space, &name);
        (space, name, age)
    };
    let read = CachedGroup {
        ages: among.ages.of(pod.namespace()),
        pod_groups: looked_for.into_iter().map(with_age).collect(),
        derived: found.derived.map(|derived| DerivedGroup {
            stamp: group_objects::stamp(&derived),
            part: group_objects::part_of(&derived, pod.name()).map(Arc::from),
            name: derived.name.into(),
        }),
        group: Arc::new(found.group.map(PodGroupTerms::of)),
    };
    (read, is_lasting)
}

/// A parsed node.
#[derive(Debug)]
pub struct ParsedNode {
    node: Node,
    /// Warnings that apply if its cards are not listed.
    notes: Vec<ObjectWarning>,
}

impl ParsedNode {
    /// Parses a node.
    pub fn of(object: ObjectView<'_>) -> Self {
        let mut warnings = ObjectWarnings::default();
        Self {
            node: nodes::node(object, &mut warnings),
            notes: warnings.0.into_iter().collect(),
        }
    }

    /// The node with nothing subtracted.
    pub fn node(&self, is_listed: bool, warnings: &mut ObjectWarnings) -> Node {
        if !is_listed {
            warnings.0.extend(self.notes.iter().cloned());
        }
        self.node.clone()
    }
}

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
    fn of(&self, namespace: &str) -> (u64, u64) {
        let age = |name| self.spaces.get(name).copied().unwrap_or(0);
        (age(""), age(namespace))
    }

    /// The age of a PodGroup, unique to its version; zero if there is none.
    pub fn of_group(&self, namespace: &str, name: &str) -> u64 {
        let found = self.pod_groups.get(namespace).and_then(|all| all.get(name));
        found.copied().unwrap_or(0)
    }

    fn note_group(&mut self, group: ObjectView<'_>, is_there: bool) {
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
    pub fn note(&mut self, before: Option<ObjectView<'_>>, after: Option<ObjectView<'_>>) {
        let object = before.or(after);
        let Some(object) = object.filter(|one| !APART.contains(&one.kind())) else {
            return;
        };
        let both = before.zip(after);
        if both.is_some_and(|(before, after)| says_the_same(before, after)) {
            return;
        }
        if object.kind() == "PodGroup" {
            return self.note_group(object, after.is_some());
        }
        *self
            .spaces
            .entry(object.namespace().to_owned())
            .or_default() += 1;
    }
}

/// Whether nothing changed but the status, which no rule reads.
fn says_the_same(before: ObjectView<'_>, after: ObjectView<'_>) -> bool {
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

#[cfg(test)]
mod anew;
