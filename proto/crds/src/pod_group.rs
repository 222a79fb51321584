//! `PodGroup`, compatible with KAI: which pods start together or not at all, and why they wait.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::kai::{Amounts, ConditionStatus};

/// What a pod group says.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "scheduling.run.ai",
    version = "v2alpha2",
    kind = "PodGroup",
    plural = "podgroups",
    shortname = "pg",
    namespaced,
    status = "PodGroupStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Pods that start together or not at all."
)]
pub struct PodGroupSpec {
    /// How many pods must start together; 0 asks for nothing. Not beside `minSubGroup`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_member: Option<i32>,
    /// How many of the subgroups at the top must start together; 0 asks for nothing. Not beside `minMember`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_sub_group: Option<i32>,
    /// The queue that it waits in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub queue: String,
    /// Its priority class.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub priority_class_name: String,
    /// Whether others may take its place; not set: if its priority is below 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "preemptibility")]
    pub preemptibility: Option<Preemptibility>,
    /// How near its pods must be to each other.
    #[serde(default, skip_serializing_if = "is_default")]
    pub topology_constraint: TopologyConstraint,
    /// The subgroups, each with its own minimum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sub_groups: Vec<SubGroup>,
    /// Whether its pods are told that they can't be scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_unschedulable: Option<bool>,
    /// After how many attempts it counts as unschedulable: -1 never, 1 the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_backoff: Option<i32>,
    /// For how long it waits before it may take the place of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_delay: Option<String>,
    /// For how long it may run with too few pods; negative is for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staleness_grace_period: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whether a group can be preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preemptibility {
    /// A pod of the group may be evicted for others.
    Preemptible,
    /// It can't.
    NonPreemptible,
}

fn preemptibility(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "string", "enum": ["preemptible", "non-preemptible"]})
}

/// The pattern of a subgroup's name.
const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// A part of a group.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubGroup {
    /// Its name; a DNS label, unique in the group.
    #[schemars(length(min = 1), regex(pattern = LABEL))]
    pub name: String,
    /// How many of its pods must start together. Only where it has no parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_member: Option<i32>,
    /// How many of its parts must start together. Only where it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_sub_group: Option<i32>,
    /// The subgroup that it is a part of; none at the top.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = LABEL))]
    pub parent: Option<String>,
    /// How near its pods must be to each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<TopologyConstraint>,
}

/// How near pods must be to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyConstraint {
    /// The level at which they are together if that is possible.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub preferred_topology_level: String,
    /// The level at which they must be together.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub required_topology_level: String,
    /// The topology whose levels these are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub topology: String,
}

/// What became of a group.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupStatus {
    /// What is so with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<PodGroupCondition>,
    /// Why it can't be scheduled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scheduling_conditions: Vec<SchedulingCondition>,
    /// What its pods ask for and have.
    #[serde(default, skip_serializing_if = "is_default")]
    pub resources_status: ResourcesStatus,
}

/// What a group's pods ask for and have.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourcesStatus {
    /// The amounts that the pods of the group have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::kai::amounts")]
    pub allocated: Amounts,
    /// What of it nobody may preempt.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::kai::amounts")]
    pub allocated_non_preemptible: Amounts,
    /// What they ask for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::kai::amounts")]
    pub requested: Amounts,
}

/// Something that is so with a group, or isn't.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupCondition {
    /// What.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Whether.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::kai::text")]
    pub status: Option<ConditionStatus>,
    /// Which change this is.
    #[serde(
        default,
        rename = "transitionID",
        skip_serializing_if = "String::is_empty"
    )]
    pub transition_id: String,
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

/// Why a group can't be scheduled on some nodes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingCondition {
    /// `UnschedulableOnNodePool`.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The node pool in which no place was found.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_pool: String,
    /// Why, in one word; `reasons` says more.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, for people; `reasons` says more.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<UnschedulableExplanation>,
    /// When it last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Whether.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::kai::text")]
    pub status: Option<ConditionStatus>,
    /// Which change this is.
    #[serde(
        default,
        rename = "transitionID",
        skip_serializing_if = "String::is_empty"
    )]
    pub transition_id: String,
}

/// One reason why a group can't be scheduled.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct UnschedulableExplanation {
    /// The reason as one word, for programs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same as a sentence, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The amounts behind the reason, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<UnschedulableDetails>,
}

/// A reason in numbers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnschedulableDetails {
    /// The queue that has too little.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_details: Option<QuotaDetails>,
}

/// What a queue had when a group didn't fit into it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaDetails {
    /// The queue.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What it asked for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::kai::amounts")]
    pub queue_requested_resources: Amounts,
    /// The quota of the queue, by resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::kai::amounts")]
    pub queue_deserved_resources: Amounts,
    /// What it had that nobody may preempt.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::kai::amounts")]
    pub queue_allocated_non_preemptible_resources: Amounts,
    /// What the group asked for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::kai::amounts")]
    pub pod_group_requested_resources: Amounts,
    /// What of it nobody may preempt.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::kai::amounts")]
    pub pod_group_requested_non_preemptible_resources: Amounts,
    /// What the queue had.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::kai::amounts")]
    pub queue_allocated_resources: Amounts,
    /// What it may have at most.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::kai::amounts")]
    pub queue_resource_limits: Amounts,
}
