//! Pods that must start together but apart: because of a host port, or of their own anti-affinity.

use std::collections::BTreeSet;

use apportion_policy::cluster::{PodAffinityTerm, Task};

use crate::decided_cluster::DecidedCluster;
use crate::unschedulable::NodeView;
use apportion_model::pod_affinity;

/// Why a gang does not fit although one of its pods would: its pods keep apart, and the nodes with room are in too
/// few domains.
pub(crate) fn too_few_domains(
    decided: &DecidedCluster<'_>,
    gang: &[&Task],
    open: &[&NodeView],
) -> Option<String> {
    let terms: BTreeSet<&PodAffinityTerm> = gang.iter().flat_map(|task| &task.apart).collect();
    terms.into_iter().find_map(|term| {
        let rivals = gang
            .iter()
            .filter(|task| task.apart.contains(term) && term.are_like(&task.labels)).count();
        let nodes = open.iter().filter_map(|view| decided.node(&view.node));
        let domains: BTreeSet<&String> = nodes
            .filter_map(|node| node.labels.get(&term.domain))
            .collect();
        if rivals < 2 || rivals <= domains.len() {
            return None;
        }
        let domains_left = match domains.len() {
            1 => "1 has".to_owned(),
            many => format!("{many} have"),
        };
        Some(match pod_affinity::port(term) {
            Some(port) => format!(
                "{rivals} of them take host port {port}, so each of these needs a node of its own, and {domains_left} room for one"
            ),
            None => format!(
                "{rivals} of them keep apart by their anti-affinity, so each of these needs a {} of its own, and {domains_left} room for one",
                term.domain
            ),
        })
    })
}
