//! What a pod requires of the pods around it, and what it prefers of its node.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::LabelMap;

/// A requirement on one label, as in a label selector of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LabelRequirement {
    /// The label has one of these values.
    In(BTreeSet<String>),
    /// The label has none of these values, or is missing.
    NotIn(BTreeSet<String>),
    /// The label exists.
    Exists,
    /// The label is missing.
    DoesNotExist,
}

impl LabelRequirement {
    /// Whether a label with this value, or a missing one, meets the requirement.
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

/// Pods whose labels match, in the same domain of the node label `domain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodAffinityTerm {
    /// The requirements on labels; all must hold.
    pub labels: Vec<(String, LabelRequirement)>,
    /// The node label whose values are the domains.
    pub domain: String,
}

impl PodAffinityTerm {
    /// Pods with these labels.
    #[must_use]
    pub fn with<'l>(
        labels: impl IntoIterator<Item = (&'l String, &'l String)>,
        domain: &str,
    ) -> Self {
        Self {
            labels: labels
                .into_iter()
                .map(|(label, value)| {
                    let value = LabelRequirement::In([value.clone()].into());
                    (label.clone(), value)
                })
                .collect(),
            domain: domain.to_owned(),
        }
    }

    /// Whether a pod with these labels matches.
    #[must_use]
    pub fn are_like(&self, labels: &LabelMap) -> bool {
        let mut asked = self.labels.iter();
        asked.all(|(label, wanted)| wanted.holds(labels.get(label).map(String::as_str)))
    }
}

/// Pods that are to be spread evenly over domains of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpreadConstraint {
    /// Which pods, and over which domains.
    pub like: PodAffinityTerm,
    /// How many more a domain may have than the emptiest domain that the pod may use (`maxSkew`).
    pub skew: u64,
    /// While the pod may use fewer domains than this, the emptiest counts as having none (`minDomains`).
    pub least_domains: u64,
}

/// A pod of another scheduler. We don't choose its place, but pods may have affinity or anti-affinity to it, and it
/// may have anti-affinity to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignPod {
    /// The name of its node.
    pub node: String,
    /// Its labels.
    pub labels: Arc<LabelMap>,
    /// Required pod anti-affinity.
    pub apart: Vec<PodAffinityTerm>,
}

/// What a pod prefers of its node, and the weight; a negative weight is a dislike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedPreference {
    /// The preference.
    pub term: PreferredTerm,
    /// Its weight.
    pub weight: i64,
}

/// What a pod prefers of the node on which it is placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreferredTerm {
    /// A label.
    Label(String),
    /// Pods that match.
    Near(PodAffinityTerm),
    /// An even spread of the pods that match.
    Even(SpreadConstraint),
}
