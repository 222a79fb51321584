//! `GpuNode`: what a node's cards have, who holds it and what is left, as the agent of the node sees it.
//!
//! There is one per node, of the node's name and owned by it, so that it goes when the node goes. The
//! node's own status can't say this: it knows whole cards only, and shows a card as free or not while
//! shares of it are given. Amounts are bytes; the strings in [`Totals`] are for the columns of
//! `kubectl get` and are never read by us.
//!
//! # Who says that an agent is gone
//! The agent can't. It writes `lastHeartbeatTime` every half minute, which a reader can judge by itself and
//! `kubectl get` shows as an age; after a hundred seconds without, the scheduler that leads sets `Ready` to
//! `Unknown`, as Kubernetes does with nodes. It is a field here and not a Lease beside it: the object is
//! small, has few readers, and one watch says all.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Nothing is decided here: an agent decides on its node, and reports.
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
    doc = "The GPUs of one node: how much memory each has, how much of it is given, and to whom.",
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

/// What the agent sees.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeStatus {
    /// The version of the agent.
    #[serde(default)]
    pub agent_version: String,
    /// The version of the driver.
    #[serde(default)]
    pub driver_version: String,
    /// When the agent last wrote this, changed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// Whether the cards are simulated ones.
    #[serde(default)]
    pub simulated: bool,
    /// Where the agent is served over TCP, `HOST:PORT`; absent where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_address: Option<String>,
    /// The cards, in the driver's order.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["uuid"]))]
    pub cards: Vec<GpuCard>,
    /// All cards together, for people.
    #[serde(default)]
    pub totals: Totals,
    /// `Ready`: whether shares can be given on this node, with the reason if not; `Unknown` once the agent
    /// fell silent.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// One card.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuCard {
    /// As NVML prints it, `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// The product, such as `NVIDIA A100-SXM4-40GB`.
    pub model: String,
    /// The position in NVML's order.
    pub index: i64,
    /// Physical memory.
    pub memory_bytes: i64,
    /// The part of it that the driver keeps.
    pub reserved_bytes: i64,
    /// What can be given: memory without reserved.
    pub allocatable_bytes: i64,
    /// What was given.
    pub allocated_bytes: i64,
    /// What can still be given: allocatable without allocated and without unmanaged.
    pub free_bytes: i64,
    /// What the driver says is in use. It is refreshed less often than the rest.
    pub used_bytes: i64,
    /// What processes without a share use.
    pub unmanaged_bytes: i64,
    /// Whether shares of the card can be given.
    pub health: CardHealth,
    /// Who holds what of the card, oldest first.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub holders: Vec<GpuHolder>,
}

/// Whether shares of a card can be given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum CardHealth {
    /// They can.
    Healthy,
    /// The card answers, and not as it should.
    Unhealthy,
    /// The card does not answer.
    Lost,
    /// Nothing was heard of the card yet.
    #[default]
    Unknown,
}

/// A container, or a program without one, that holds a share of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuHolder {
    /// The pod's namespace; absent for a program that no pod runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The pod's name; absent for a program that no pod runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The container; empty where the pod's containers have the share together. Of a program that no pod
    /// runs, what people call it.
    pub container: String,
    /// The most that its processes may take.
    pub limit_bytes: i64,
}

/// All cards together, as `kubectl get gpunodes` shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// How many cards there are.
    pub cards: i64,
    /// How many of them are healthy.
    pub healthy: i64,
    /// The models, each once.
    pub model: String,
    /// How many shares are held.
    pub holders: i64,
    /// Memory that can be given.
    pub allocatable: String,
    /// Memory that was given.
    pub allocated: String,
    /// Memory that can still be given.
    pub free: String,
    /// Memory in use.
    pub used: String,
}
