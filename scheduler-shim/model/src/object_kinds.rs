//! The kinds of objects that are read, by API group.

use apportion_groups::TABLE;

/// API group and kind.
pub type ObjectKind = (&'static str, &'static str);

/// A Namespace.
pub const NAMESPACE: ObjectKind = ("", "Namespace");
/// A ConfigMap.
pub const CONFIG_MAP: ObjectKind = ("", "ConfigMap");
/// The cards of a node, as its agent reports them.
pub const GPU_NODE: ObjectKind = ("apportion.dev", "GpuNode");
/// The NUMA zones of a node, by the node's name.
pub const NODE_RESOURCE_TOPOLOGY: ObjectKind = ("topology.node.k8s.io", "NodeResourceTopology");
/// A SchedulingShard.
pub const SCHEDULING_SHARD: ObjectKind = ("kai.scheduler", "SchedulingShard");
/// A Config of KAI.
pub const KAI_CONFIG: ObjectKind = ("kai.scheduler", "Config");

/// Cluster-scoped kinds that are read, by API group.
const CLUSTER_WIDE: &[ObjectKind] = &[
    ("", "Node"),
    NAMESPACE,
    ("scheduling.run.ai", "Queue"),
    ("scheduling.k8s.io", "PriorityClass"),
    ("kai.scheduler", "Topology"),
    SCHEDULING_SHARD,
    KAI_CONFIG,
    GPU_NODE,
    NODE_RESOURCE_TOPOLOGY,
    ("", "PersistentVolume"),
    ("storage.k8s.io", "StorageClass"),
    ("storage.k8s.io", "CSIDriver"),
    (CLAIM_GROUP, "ResourceSlice"),
    (CLAIM_GROUP, "DeviceClass"),
];

/// Namespaced kinds that are read, beside those that own pods.
const NAMESPACED: &[ObjectKind] = &[
    ("scheduling.run.ai", "PodGroup"),
    ("", "PersistentVolumeClaim"),
    CONFIG_MAP,
    ("storage.k8s.io", "CSIStorageCapacity"),
    (CLAIM_GROUP, "ResourceClaim"),
    ("scheduler.grove.io", "PodGang"),
    // Between a Knative service and its Deployments: the owners on the way, and the scale of a revision.
    ("serving.knative.dev", "Configuration"),
    ("serving.knative.dev", "Revision"),
];

/// The API group of device claims.
pub const CLAIM_GROUP: &str = "resource.k8s.io";
/// Templates of claims. A running cluster creates the claims itself, so only files need them.
const CLAIM_TEMPLATE: ObjectKind = (CLAIM_GROUP, "ResourceClaimTemplate");

/// The kinds that a running cluster's decisions need, by API group.
pub fn kinds() -> impl Iterator<Item = (&'static str, &'static str)> {
    let owners = TABLE.iter().map(|row| (row.api_group, row.kind));
    CLUSTER_WIDE.iter().chain(NAMESPACED).copied().chain(owners)
}

/// Whether a running cluster's decisions need objects of a kind.
pub fn is_read(group: &str, kind: &str) -> bool {
    kinds().any(|known| known == (group, kind))
}

/// Whether an object is cluster-scoped; `None` if no decision needs its kind.
pub(crate) fn is_cluster_wide(group: &str, kind: &str) -> Option<bool> {
    if (group, kind) == CLAIM_TEMPLATE {
        return Some(false);
    }
    is_read(group, kind).then(|| CLUSTER_WIDE.contains(&(group, kind)))
}
