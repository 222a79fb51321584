//! What a pod asks of the pods around it, and of its node where that is only a wish.

use std::collections::{BTreeMap, BTreeSet};

/// What is asked of one label, as in a label selector of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LabelRequirement {
    /// It is there and has one of these values.
    In(BTreeSet<String>),
    /// It has none of these values, or is not there.
    NotIn(BTreeSet<String>),
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

impl LabelRequirement {
    /// Whether a label that is there with this value, or not there, is as asked.
    #[must_use]
    pub fn holds(&self, found: Option<&str>) -> bool {
        match self {
            Self::In(values) => found.is_some_and(|value| values.contains(value)),
            Self::NotIn(values) => found.is_none_or(|value| !values.contains(value)),
            Self::Exists => found.is_some(),
            Self::DoesNotExist => found.is_none(),
        }
    }
}

/// Pods whose labels are as asked, in the same domain of the node label `domain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodAffinityTerm {
    /// What is asked of labels, all of it.
    pub labels: Vec<(String, LabelRequirement)>,
    /// The node label whose values are the domains.
    pub domain: String,
}

impl PodAffinityTerm {
    /// Pods with these labels.
    #[must_use]
    pub fn with(labels: &BTreeMap<String, String>, domain: &str) -> Self {
        let one = |(label, value): (&String, &String)| {
            let value = LabelRequirement::In([value.clone()].into());
            (label.clone(), value)
        };
        Self {
            labels: labels.iter().map(one).collect(),
            domain: domain.to_owned(),
        }
    }

    /// Whether a pod with these labels is one of them.
    #[must_use]
    pub fn are_like(&self, labels: &BTreeMap<String, String>) -> bool {
        let mut asked = self.labels.iter();
        asked.all(|(label, wanted)| wanted.holds(labels.get(label).map(String::as_str)))
    }
}

/// Pods that are to be spread evenly over domains of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpreadConstraint {
    /// Which, and over which domains.
    pub like: PodAffinityTerm,
    /// How many more a domain may have than the emptiest where the pod may be.
    pub skew: u64,
    /// While the pod may be in fewer domains than these, the emptiest counts as one that has none.
    pub least_domains: u64,
}

/// A pod of another scheduler: its place is not ours to choose, but others may want to be near it or apart from
/// it, and it may want to be apart from others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignPod {
    /// The name of its node.
    pub node: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Pods near which it must not be.
    pub apart: Vec<PodAffinityTerm>,
}

/// What a pod would rather have of its node, and how much that counts; below zero what it would rather not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedPreference {
    /// What.
    pub wish: PreferredTerm,
    /// How much.
    pub weight: i64,
}

/// What a node may have that a pod likes or dislikes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreferredTerm {
    /// A label.
    Label(String),
    /// Pods like these.
    Near(PodAffinityTerm),
    /// As many pods like these as other domains have.
    Even(SpreadConstraint),
}
