//! What pods and nodes say by themselves, parsed once and kept until they change.
//!
//! A round looks at every pod of the cluster, and most are as they were in the last round. What depends on one object
//! alone is parsed when that object comes, because the objects themselves are kept as text. A pod's group also
//! depends on others; `groups` fills it in.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use apportion_abi::names::{
    ANNOTATION_GROUP, ANNOTATION_RESERVED, LABEL_RESERVATION, LABEL_SUBGROUP, RESOURCE_SLOT,
};
use apportion_admission::ignored;
use apportion_groups::ObjectView;
use apportion_policy::cluster::{ExtendedResourceClaim, Node, Task, TaskGpuRequest, TaskStatus};
use serde_json::Value;

use super::cached_group::CachedGroup;
use super::cards::CardShare;
use super::extended_requests::{ExtendedClaimStatus, RequestedResources};
use super::object_warnings::{ObjectWarning, ObjectWarnings, called};
use super::pod_occupancy::PodOccupancy;
use super::{cards, clock, node_requirements, nodes, pods, requests, tasks};

/// The scheduler of pods that name none.
const DEFAULT: &str = "default-scheduler";
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
    /// The claim that it has in place of extended resources, and what it has of cards besides; if it is bound.
    pub(crate) extended: Option<Box<ExtendedResourceClaim>>,
    /// What it requests, once somebody asked.
    requested: OnceLock<Box<RequestedResources>>,
    /// What it holds beside cards.
    pub holds: PodOccupancy,
    /// CPU and memory.
    pub cpu_millis: i64,
    /// Memory that it requests, in bytes.
    pub memory: i64,
    /// A key for what it requires of its node; the same for pods with the same requirements.
    pub requirements_key: Arc<str>,
    /// The ConfigMaps without which it can't start.
    pub config_maps: Box<[Box<str>]>,
    warnings_found: Vec<ObjectWarning>,
    pub(crate) group: Mutex<Option<CachedGroup>>,
}

impl ParsedPod {
    /// Parses a pod.
    pub fn of(pod: ObjectView<'_>) -> Self {
        let cards = cards::reserved(pod, requests::cards(pod));
        let mut warnings = ObjectWarnings::default();
        let ignored_durations = ignored::durations(pod.json()).into_iter();
        for message in ignored_durations.chain(requests::growth(pod)) {
            let object = called("Pod", pod.namespace(), pod.name());
            warnings.add(object, format!("its {message}"));
        }
        let task = match requests::unreadable(pod) {
            Some(why) => Err(why),
            None => (cards.clone()).map(|cards| tasks::task(pod, cards, &mut warnings)),
        };
        let mut holds = PodOccupancy::of(pod);
        let status = pods::node(pod).and_then(|node| Some((node, ExtendedClaimStatus::of(pod)?)));
        let extended = status.map(|(node, status)| {
            holds = std::mem::take(&mut holds).without(&status.resources);
            let asked = cards.as_ref().unwrap_or(&TaskGpuRequest::None);
            let requested = RequestedResources::of(pod);
            let cards = requested.cards_without(asked, |name| status.resources.contains(name));
            Box::new(ExtendedResourceClaim {
                nodes: Arc::new([node.to_owned()].into()),
                cards,
                claim: status.claim,
            })
        });
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
            preferred: node_requirements::preferred(pod),
            task: task.map(|task| Task {
                extended: extended.iter().map(|one| (**one).clone()).collect(),
                ..task
            }),
            cards,
            extended,
            requested: OnceLock::new(),
            slotless: slotless.map(Into::into),
            cpu_millis: requests::total(pod, "cpu").millis(),
            memory: requests::total(pod, "memory").units(),
            requirements_key: node_requirements::key(pod, &holds).into(),
            config_maps: pods::config_maps(pod),
            holds,
            warnings_found: warnings.0.into_iter().collect(),
            group: Mutex::default(),
        }
    }

    /// The node that it is bound to.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.status, TaskStatus::Succeeded | TaskStatus::Failed)
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

    /// What it requests, read from its object when somebody asks for the first time.
    pub(crate) fn requested<'o>(
        &self,
        object: impl FnOnce() -> Option<ObjectView<'o>>,
    ) -> Option<&RequestedResources> {
        if self.requested.get().is_none() {
            let json = object()?.read_apart();
            let requested = RequestedResources::of(ObjectView::new(&json));
            let _ = self.requested.set(Box::new(requested));
        }
        self.requested.get().map(Box::as_ref)
    }

    /// The task, or why the pod is invalid.
    pub fn task(&self, warnings: &mut ObjectWarnings) -> Result<Task, String> {
        warnings.0.extend(self.warnings_found.iter().cloned());
        self.task.clone()
    }

    /// What others see of it; `None` if it is invalid.
    pub fn seen(&self) -> Option<&Task> {
        self.task.as_ref().ok()
    }
}

/// A node as the policy needs it, parsed once.
#[derive(Debug)]
pub struct ParsedNode {
    node: Node,
    /// Warnings that apply if its cards are not listed.
    warnings_found: Vec<ObjectWarning>,
}

impl ParsedNode {
    /// Parses a node.
    pub fn of(object: ObjectView<'_>) -> Self {
        let mut warnings = ObjectWarnings::default();
        Self {
            node: nodes::node(object, &mut warnings),
            warnings_found: warnings.0.into_iter().collect(),
        }
    }

    /// The node with nothing subtracted.
    pub fn node(&self, is_listed: bool, warnings: &mut ObjectWarnings) -> Node {
        if !is_listed {
            warnings.0.extend(self.warnings_found.iter().cloned());
        }
        self.node.clone()
    }
}

/// What a job needs of its PodGroup in each round, parsed once.
#[derive(Debug)]
pub(crate) struct ParsedPodGroup {
    pub(crate) created: Option<Duration>,
    /// Its staleness grace period, as written.
    pub(crate) grace: Option<Box<str>>,
    /// The fields that are ignored, and why.
    pub(crate) ignored: Vec<String>,
}

impl ParsedPodGroup {
    pub(crate) fn of(object: ObjectView<'_>) -> Self {
        let grace = object.json()["spec"]["stalenessGracePeriod"].as_str();
        Self {
            created: clock::field(object, "/metadata/creationTimestamp"),
            grace: grace.filter(|text| !text.is_empty()).map(Box::from),
            ignored: ignored::durations(object.json()),
        }
    }
}

#[cfg(test)]
mod tests;
