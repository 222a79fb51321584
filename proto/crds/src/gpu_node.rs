//! `GpuNode`: the memory of a node's GPUs, who holds it and what is free, as the node's agent reports it.
//!
//! Each node has one, with the node's name and owned by the node, so that it is deleted with the node. The node's own
//! status can't report this: it only knows whole GPUs. Amounts are bytes; the strings in [`GpuTotals`] are for the
//! columns of `kubectl get`, and our programs never read them.
//!
//! # Who reports that an agent is gone
//! The agent can't. It writes `lastHeartbeatTime` with every change, and at least every six hours; `kubectl get` shows it
//! as an age. The leading scheduler is connected to the agents. It sets `Ready` to `Unknown` after 100 seconds
//! without an answer, as Kubernetes does with nodes. For an agent without an address it does so after two missed
//! heartbeats. The heartbeat is a field here and not a Lease beside the object: the object is small, has few readers,
//! and one watch delivers everything.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Empty: an agent decides on its node and reports in `status`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "apportion.dev",
    version = "v1alpha1",
    kind = "GpuNode",
    plural = "gpunodes",
    shortname = "gpun",
    category = "apportion",
    status = "GpuNodeStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "The GPUs of one node: how much memory each has, how much of it is allocated, and to whom.",
    printcolumn = r#"{"name":"GPUs","type":"integer","jsonPath":".status.totals.cards"}"#,
    printcolumn = r#"{"name":"Healthy","type":"integer","jsonPath":".status.totals.healthy"}"#,
    printcolumn = r#"{"name":"Model","type":"string","jsonPath":".status.totals.model"}"#,
    printcolumn = r#"{"name":"Allocatable","type":"string","jsonPath":".status.totals.allocatable"}"#,
    printcolumn = r#"{"name":"Allocated","type":"string","jsonPath":".status.totals.allocated"}"#,
    printcolumn = r#"{"name":"Free","type":"string","jsonPath":".status.totals.free"}"#,
    printcolumn = r#"{"name":"Used","type":"string","jsonPath":".status.totals.used"}"#,
    printcolumn = r#"{"name":"Holders","type":"integer","jsonPath":".status.totals.holders"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Heard","type":"date","jsonPath":".status.lastHeartbeatTime"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Driver","type":"string","priority":1,"jsonPath":".status.driverVersion"}"#,
    printcolumn = r#"{"name":"Agent","type":"string","priority":1,"jsonPath":".status.agentVersion"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
pub struct GpuNodeSpec {}

/// What the node's agent reports.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeStatus {
    /// Version of the agent.
    #[serde(default)]
    pub agent_version: String,
    /// Version of the NVIDIA driver.
    #[serde(default)]
    pub driver_version: String,
    /// When the agent last reported, at least every six hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// Whether the GPUs are simulated.
    #[serde(default)]
    pub simulated: bool,
    /// The agent's TCP address, `HOST:PORT`. Absent if it serves none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_address: Option<String>,
    /// Up to how many per cent of a GPU's allocatable memory the limits on it may add up: `--gpu-memory-overcommit` of the
    /// agent, 400 for four times. It counts for shares whose limit is above what they are guaranteed. Absent if the agent
    /// does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overcommit_percent: Option<i64>,
    /// The GPUs, in NVML's order.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["uuid"]))]
    pub cards: Vec<GpuCard>,
    /// Sums over all GPUs, for `kubectl get`.
    #[serde(default)]
    pub totals: GpuTotals,
    /// `Ready`: whether the agent can give shares on this node, with the reason if not. `Unknown` if the agent
    /// has not answered the scheduler for 100 seconds, or, without `agentAddress`, has not reported for two hours.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// What keeps limits on this node.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub enforcement: Vec<LimitEnforcement>,
}

/// One way in which limits are kept on a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LimitEnforcement {
    /// `Library`: the library that programs load. `NvmlWatch`: the agent compares shares with NVML. `DriverLimits`: the
    /// driver's own limit of each container, for programs that go round the library.
    pub name: String,
    /// Whether it is in use.
    pub active: bool,
    /// How, or why not.
    #[serde(default)]
    pub message: String,
}

/// One GPU of the node, with its state.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuCard {
    /// The UUID as NVML prints it, `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// The product name, such as `NVIDIA A100-SXM4-40GB`.
    pub model: String,
    /// The index in NVML's order.
    pub index: i64,
    /// Physical memory, in bytes.
    pub memory_bytes: i64,
    /// Memory that the driver reserves for itself, in bytes.
    pub reserved_bytes: i64,
    /// Memory that shares can have: physical less reserved, in bytes.
    pub allocatable_bytes: i64,
    /// Sum of what all shares are guaranteed, in bytes: their limits, except of those that may use more.
    pub allocated_bytes: i64,
    /// Memory that further shares can be guaranteed, in bytes: allocatable less allocated, less unmanaged, less what shares
    /// use above their guarantees.
    pub free_bytes: i64,
    /// Memory in use as the driver reports it, in bytes. It is updated less often than the other fields.
    pub used_bytes: i64,
    /// Memory that processes without a share use, in bytes.
    pub unmanaged_bytes: i64,
    /// Whether the agent gives shares of this GPU.
    pub health: CardHealth,
    /// The shares of this GPU, oldest first. A GPU that is given whole has one.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub holders: Vec<GpuHolder>,
}

/// Whether the agent gives shares of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum CardHealth {
    /// It does.
    Healthy,
    /// The GPU answers but reports errors.
    Unhealthy,
    /// The GPU does not answer.
    Lost,
    /// The agent has not read the GPU yet.
    #[default]
    Unknown,
}

/// A container, or a program outside a pod, with a share of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuHolder {
    /// The pod's namespace. Absent for a program outside a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The pod's name. Absent for a program outside a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The container's name. Empty if the pod's containers have one share together. The program's name outside a
    /// pod.
    pub container: String,
    /// The most memory that its processes may use together, in bytes.
    pub limit_bytes: i64,
    /// Memory that its processes can always have, in bytes. Absent if that is the limit. 0 while the pod's scheduler has
    /// suspended it: others have its share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guaranteed_bytes: Option<i64>,
    /// Whether its processes sleep with their GPU memory in the host's memory. The agent wakes them, or the scheduler if it
    /// suspended the pod. Absent if they run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// Whether they sleep because they did not use the GPU, so that their next CUDA call wakes them; else others were
    /// promised what they used above their guarantee. Absent if they run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idle: bool,
}

/// Sums over all GPUs of the node, as `kubectl get gpunodes` shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuTotals {
    /// Number of GPUs.
    pub cards: i64,
    /// Number of healthy GPUs.
    pub healthy: i64,
    /// The product names, each once.
    pub model: String,
    /// Number of shares.
    pub holders: i64,
    /// Memory that shares can have.
    pub allocatable: String,
    /// Sum of what all shares are guaranteed.
    pub allocated: String,
    /// Memory for further shares.
    pub free: String,
    /// Memory in use.
    pub used: String,
}
