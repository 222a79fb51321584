//! What a group is: the values that a PodGroup object is written from.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::object::ObjectView;

/// The pods that are scheduled together, and on which terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DerivedPodGroup {
    /// Its name, unique in its namespace.
    pub name: String,
    /// Where it and its pods are.
    pub namespace: String,
    /// The object with which it lives and dies.
    pub owner: PodGroupOwner,
    /// The queue that pays.
    pub queue: String,
    /// Decides who goes first and, where `preemptibility` is silent, who may be evicted.
    pub priority_class: String,
    /// What the owner or pod says about eviction; `None` leaves it to the priority.
    pub preemptibility: Option<GroupPreemptibility>,
    /// How long it must have waited before it may evict others.
    pub preemption_delay: Option<Duration>,
    /// How many pods must start together; zero where `min_sub_group` counts.
    pub min_member: u32,
    /// How many of the topmost subgroups must start together.
    pub min_sub_group: Option<u32>,
    /// Labels for the PodGroup.
    pub labels: BTreeMap<String, String>,
    /// Annotations for the PodGroup.
    pub annotations: BTreeMap<String, String>,
    /// Where all of its pods must or should be together.
    pub topology: DerivedTopologyConstraint,
    /// Its parts, a parent before its children.
    pub sub_groups: Vec<DerivedSubGroup>,
}

/// The owner reference of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodGroupOwner {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Unique id.
    pub uid: String,
}

/// Part of a group: a leaf holds pods, the others hold subgroups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DerivedSubGroup {
    /// Its name, unique in the group.
    pub name: String,
    /// The subgroup that it is part of.
    pub parent: Option<String>,
    /// How many of its pods must start together; zero where `min_sub_group` counts.
    pub min_member: u32,
    /// How many of its own subgroups must start together.
    pub min_sub_group: Option<u32>,
    /// Those of its pods that are known here: the pod in question, if it is one of them.
    pub pods: Vec<String>,
    /// Where its pods must or should be together.
    pub topology: Option<DerivedTopologyConstraint>,
}

/// A place in a topology; empty text means no such wish.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DerivedTopologyConstraint {
    /// The Topology object.
    pub name: String,
    /// The level within which all pods must be.
    pub required: String,
    /// The level within which they better are.
    pub preferred: String,
}

/// Whether a group may be evicted for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupPreemptibility {
    /// It may.
    Preemptible,
    /// It may not.
    NonPreemptible,
}

impl GroupPreemptibility {
    /// Reads a label's value; other words mean nothing.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "preemptible" => Some(Self::Preemptible),
            "non-preemptible" => Some(Self::NonPreemptible),
            _ => None,
        }
    }

    /// The label's value.
    pub fn text(self) -> &'static str {
        match self {
            Self::Preemptible => "preemptible",
            Self::NonPreemptible => "non-preemptible",
        }
    }
}

impl PodGroupOwner {
    pub(crate) fn of(object: ObjectView<'_>) -> Self {
        Self {
            api_version: object.api_version().to_owned(),
            kind: object.kind().to_owned(),
            name: object.name().to_owned(),
            uid: object.uid().to_owned(),
        }
    }

    /// A pod; the API server leaves out the kind of what it serves in lists.
    pub(crate) fn of_pod(pod: ObjectView<'_>) -> Self {
        Self {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            ..Self::of(pod)
        }
    }
}

impl DerivedSubGroup {
    pub(crate) fn leaf(name: impl Into<String>, min_member: u32) -> Self {
        Self {
            name: name.into(),
            min_member,
            ..Self::default()
        }
    }

    pub(crate) fn node(name: impl Into<String>, min_sub_group: u32) -> Self {
        Self {
            name: name.into(),
            min_sub_group: Some(min_sub_group),
            ..Self::default()
        }
    }

    pub(crate) fn under(mut self, parent: &str) -> Self {
        self.parent = Some(parent.to_owned());
        self
    }

    pub(crate) fn placed(mut self, topology: Option<DerivedTopologyConstraint>) -> Self {
        self.topology = topology;
        self
    }

    pub(crate) fn holding(mut self, pod: ObjectView<'_>, holds: bool) -> Self {
        if holds {
            self.pods.push(pod.name().to_owned());
        }
        self
    }
}

/// All pods of parts that hold pods. Numbers come from manifests, so the sum may not fit.
pub(crate) fn members(parts: &[DerivedSubGroup]) -> u32 {
    parts
        .iter()
        .map(|part| part.min_member)
        .fold(0, u32::saturating_add)
}

impl DerivedTopologyConstraint {
    /// `None` if it asks for nothing: a topology without a level constrains no pod.
    pub(crate) fn some(self) -> Option<Self> {
        (!self.required.is_empty() || !self.preferred.is_empty()).then_some(self)
    }
}
