//! The derived group: the values that a PodGroup object is written from.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::object::ObjectView;

/// Pods that are scheduled together, and their terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DerivedPodGroup {
    /// Its name, unique in its namespace.
    pub name: String,
    /// Its namespace, and that of its pods.
    pub namespace: String,
    /// The owner; the group is deleted with it.
    pub owner: PodGroupOwner,
    /// The queue that is charged.
    pub queue: String,
    /// Decides which group goes first and, without `preemptibility`, which may be evicted.
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
    /// The topology constraint of all its pods.
    pub topology: DerivedTopologyConstraint,
    /// Its subgroups, parents before children.
    pub sub_groups: Vec<DerivedSubGroup>,
}

/// The owner reference of a group.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodGroupOwner {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
}

/// A subgroup: a leaf holds pods, the others hold subgroups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DerivedSubGroup {
    /// Its name, unique in the group.
    pub name: String,
    /// The parent subgroup.
    pub parent: Option<String>,
    /// How many of its pods must start together; zero where `min_sub_group` counts.
    pub min_member: u32,
    /// How many of its direct subgroups must start together.
    pub min_sub_group: Option<u32>,
    /// Its known pods: at most the pod in question.
    pub pods: Vec<String>,
    /// The topology constraint of its pods.
    pub topology: Option<DerivedTopologyConstraint>,
}

/// A topology constraint; an empty level is not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DerivedTopologyConstraint {
    /// The Topology object.
    pub name: String,
    /// The level within which all pods must be.
    pub required: String,
    /// The level within which they should be.
    pub preferred: String,
}

/// Whether a group may be evicted for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupPreemptibility {
    /// Its pods may be evicted.
    Preemptible,
    /// Its pods may not be evicted.
    NonPreemptible,
}

impl GroupPreemptibility {
    /// Parses a label's value; `None` for other words.
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

    /// A pod. The API server omits the kind of objects in lists, so it is filled in.
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

/// The number of pods that must start in all subgroups. Numbers come from manifests, so the sum saturates.
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
