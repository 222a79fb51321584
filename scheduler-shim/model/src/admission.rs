//! Which pods a node admits: node selector, node affinity, taints, cordons.
//!
//! The policy knows labels with sets of values. Everything that Kubernetes can require of a node is brought to that
//! form: each different requirement gets an internal label, and the nodes that meet it carry the label.

use std::collections::BTreeMap;
use std::sync::Arc;

use apportion_groups::ObjectView;
use apportion_policy::cluster::{
    Node, PreferredTerm, RequiredLabels, TaskGpuRequest, WeightedPreference,
};
use serde_json::Value;

use super::inventory::ObjectInventory;
use super::node_requirements;
use super::occupancy::NodeOccupancy;
use super::volumes;

/// An internal label of nodes that take shares. No user can set it, because of the space.
pub const TAKES_SHARES: &str = " takes-shares";
/// The same for whole cards.
pub const TAKES_CARDS: &str = " takes-cards";

/// The value of internal labels.
const YES: &str = "yes";

/// An internal label, and what pods with it require of their nodes, by the label that cards need besides.
#[derive(Debug, Default)]
struct AdmissionLabel {
    label: String,
    required: BTreeMap<Option<&'static str>, Arc<RequiredLabels>>,
}

/// The internal labels so far, by requirement.
#[derive(Debug, Default)]
pub struct NodeAdmission {
    labels: BTreeMap<String, AdmissionLabel>,
    /// Internal labels by preferred term.
    preferred: BTreeMap<String, String>,
    occupancy: NodeOccupancy,
}

impl NodeAdmission {
    /// For a cluster with this occupancy.
    pub fn of(occupancy: NodeOccupancy) -> Self {
        Self {
            occupancy,
            ..Self::default()
        }
    }

    /// A pod's preferences about its node, as internal labels. Sets the labels on the nodes.
    pub fn prefer(
        &mut self,
        preferred: &[Value],
        objects: &[ObjectView<'_>],
        known: &mut [Node],
    ) -> Vec<WeightedPreference> {
        let mut preferences = Vec::new();
        for term in preferred {
            let (wanted, number) = (&term["preference"], self.preferred.len());
            let label = self.preferred.entry(wanted.to_string()).or_insert_with(|| {
                let label = format!(" prefer-{number}");
                for (object, node) in objects.iter().zip(known.iter_mut()) {
                    if node_requirements::matches(wanted, *object) {
                        node.set_label(&label, YES);
                    }
                }
                label
            });
            preferences.push(WeightedPreference {
                term: PreferredTerm::Label(label.clone()),
                weight: term["weight"].as_i64().unwrap_or(0),
            });
        }
        preferences
    }

    /// The label of nodes that take pods with such a request.
    pub fn takes(cards: &TaskGpuRequest) -> Option<&'static str> {
        match cards {
            TaskGpuRequest::Shared { .. } => Some(TAKES_SHARES),
            TaskGpuRequest::Whole(_) => Some(TAKES_CARDS),
            TaskGpuRequest::None | TaskGpuRequest::Partitions(_) => None,
        }
    }

    /// The internal labels that a pod requires of its node: one for its `key`, and `takes`. Sets the first on the
    /// nodes that admit the pod. Pods with the same requirements share them.
    pub fn node_affinity(
        &mut self,
        pod: ObjectView<'_>,
        objects: &[ObjectView<'_>],
        known: &mut [Node],
        (key, takes): (&str, Option<&'static str>),
        inventory: &ObjectInventory,
    ) -> Arc<RequiredLabels> {
        if !self.labels.contains_key(key) {
            let label = format!(" requirements-{}", self.labels.len());
            for (object, node) in objects.iter().zip(known.iter_mut()) {
                if self.occupancy.refused(pod, *object, inventory).is_none() {
                    node.set_label(&label, YES);
                }
            }
            let required = BTreeMap::new();
            self.labels
                .insert(key.to_owned(), AdmissionLabel { label, required });
        }
        self.labels.get_mut(key).map_or_else(Arc::default, |known| {
            let all = [Some(known.label.as_str()), takes];
            let required = known.required.entry(takes).or_insert_with(|| {
                let all = all.into_iter().flatten();
                Arc::new(
                    all.map(|label| (label.to_owned(), vec![YES.to_owned()]))
                        .collect(),
                )
            });
            Arc::clone(required)
        })
    }
}

impl NodeOccupancy {
    /// Why a node does not admit a pod, apart from the resources that the policy counts.
    pub fn refused(
        &self,
        pod: ObjectView<'_>,
        node: ObjectView<'_>,
        inventory: &ObjectInventory,
    ) -> Option<String> {
        node_requirements::refusal(pod, node)
            .or_else(|| volumes::refusal(pod, node, inventory))
            .or_else(|| self.refusal(pod, node, &inventory.claims))
    }
}
