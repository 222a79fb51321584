//! `Queue`, compatible with KAI: who may use how much of the cluster.
//!
//! Amounts are in KAI's units: GPUs, thousandths of a processor, megabytes (10^6 bytes). -1 is unlimited. A missing
//! field is 0; for a limit, that allows nothing.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kai::{Amounts, ConditionStatus};

/// A Go duration that is not negative. An empty text counts as missing.
const DURATION: &str = r"^$|^\+?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$";

/// What a queue says.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "scheduling.run.ai",
    version = "v2",
    kind = "Queue",
    plural = "queues",
    status = "QueueStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A queue of workloads with its share of the cluster.",
    printcolumn = r#"{"name":"Priority","type":"string","jsonPath":".spec.priority"}"#,
    printcolumn = r#"{"name":"Parent","type":"string","jsonPath":".spec.parentQueue"}"#,
    printcolumn = r#"{"name":"Children","type":"string","jsonPath":".status.childQueues"}"#,
    printcolumn = r#"{"name":"DisplayName","type":"string","jsonPath":".spec.displayName"}"#,
    printcolumn = r#"{"name":"GPU Quota","type":"number","jsonPath":".spec.resources.gpu.quota"}"#,
    printcolumn = r#"{"name":"GPU Allocated","type":"string","jsonPath":".status.allocated.nvidia\\.com/gpu"}"#,
    printcolumn = r#"{"name":"GPU Requested","type":"string","jsonPath":".status.requested.nvidia\\.com/gpu"}"#,
    printcolumn = r#"{"name":"Usable","type":"string","jsonPath":".status.conditions[?(@.type==\"Usable\")].status","priority":1}"#
)]
pub struct QueueSpec {
    /// What people call it; messages use it in place of the name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub display_name: String,
    /// The queue that it is a part of; empty at the top.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub parent_queue: String,
    /// Its share of the cluster. A queue without one is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<QueueResources>,
    /// Who gets what is left over first, and is taken from last: the higher. Not set is 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// For how long a job of this queue runs before one of higher priority may take its place: 90s, 30m, 12h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = DURATION))]
    pub preempt_min_runtime: Option<String>,
    /// For how long a job of this queue runs before another queue may reclaim its place: 90s, 30m, 12h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = DURATION))]
    pub reclaim_min_runtime: Option<String>,
}

/// A queue's share of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct QueueResources {
    /// Cards, in fractions: 0.7 is 70 % of one.
    #[serde(default)]
    pub gpu: QueueResource,
    /// Processors, in thousandths.
    #[serde(default)]
    pub cpu: QueueResource,
    /// Memory, in megabytes of 10^6 bytes.
    #[serde(default)]
    pub memory: QueueResource,
}

/// A queue's share of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueResource {
    /// What the queue deserves.
    #[serde(default)]
    pub quota: f64,
    /// Its weight when what nobody deserves is shared out.
    #[serde(default)]
    pub over_quota_weight: f64,
    /// What it may have at most.
    #[serde(default)]
    pub limit: f64,
}

/// What became of a queue.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// `Orphan`, `OverQuota`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<QueueCondition>,
    /// The queues that name this one as their parent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub child_queues: Vec<String>,
    /// What its running jobs have, those of the queues below it included.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::kai::amounts")]
    pub allocated: Amounts,
    /// What of it belongs to jobs that nobody may preempt.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::kai::amounts")]
    pub allocated_non_preemptible: Amounts,
    /// What its running and waiting jobs ask for, those of the queues below it included.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::kai::amounts")]
    pub requested: Amounts,
}

/// Something that is so with a queue, or isn't.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueCondition {
    /// What.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether.
    #[schemars(schema_with = "crate::kai::text")]
    pub status: ConditionStatus,
    /// When it was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    /// When it last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Why it last changed, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why it last changed, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}
