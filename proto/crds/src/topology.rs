//! `Topology`, compatible with KAI: the node labels that tell how near nodes are to each other, coarse ones first.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a topology says.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "kai.scheduler",
    version = "v1alpha1",
    kind = "Topology",
    plural = "topologies",
    derive = "Default",
    derive = "PartialEq",
    doc = "The levels at which nodes are near to each other."
)]
pub struct TopologySpec {
    /// The levels, the coarsest first.
    #[schemars(
        length(min = 1, max = 16),
        extend("x-kubernetes-list-type" = "atomic"),
        extend("x-kubernetes-validations" = [
            {
                "message": "nodeLabel structure is immutable; only aliases may be edited",
                "rule": "self.map(l, l.nodeLabel) == oldSelf.map(l, l.nodeLabel)",
            },
            {
                "message": "nodeLabel must be unique",
                "rule": "size(self.filter(i, size(self.filter(j, j.nodeLabel == i.nodeLabel)) > 1)) == 0",
            },
            {
                "message": "the kubernetes.io/hostname label can only be used at the lowest level of topology",
                "rule": "size(self.filter(i, i.nodeLabel == 'kubernetes.io/hostname')) == 0 || self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname'",
            },
        ])
    )]
    pub levels: Vec<TopologyLevel>,
}

/// A level of a topology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyLevel {
    /// The label whose value nodes of one place share.
    #[schemars(length(min = 1, max = 316), regex(pattern = LABEL))]
    pub node_label: String,
    /// Another name for the level. It must be the name of nothing else in the topology.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 316), regex(pattern = LABEL))]
    pub alias: String,
}

/// The pattern of a label's name.
const LABEL: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";
