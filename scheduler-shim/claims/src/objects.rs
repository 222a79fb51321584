//! The objects of `resource.k8s.io/v1`, with the fields that an allocation depends on.
//!
//! A field that changes what may be allocated, and that this crate does not follow, is kept, so that the allocation
//! can be refused instead of being wrong.

#![expect(missing_docs, reason = "the fields are those of resource.k8s.io")]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::amount::{Amount, CapacityMap};
use crate::attribute::DeviceAttribute;

/// The name and the identity of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectMetadata {
    pub name: String,
    /// Its namespace, if its kind has any.
    pub namespace: String,
    pub uid: String,
    /// When it was created, in the API server's form, by which times can be compared as texts.
    pub creation_timestamp: String,
}

/// A part of the devices of a pool.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceSlice {
    pub metadata: ObjectMetadata,
    pub spec: ResourceSliceSpec,
}

/// What a slice has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceSliceSpec {
    /// The driver that published it.
    pub driver: String,
    pub pool: ResourcePool,
    /// The only node that reaches its devices.
    pub node_name: Option<String>,
    /// The nodes that reach its devices.
    pub node_selector: Option<NodeSelector>,
    /// Whether every node reaches its devices.
    pub all_nodes: bool,
    /// Whether each device says which nodes reach it.
    pub per_device_node_selection: bool,
    pub devices: Vec<Device>,
    /// What devices of the pool share.
    pub shared_counters: Vec<CounterSet>,
    /// Steps that a kubelet is to leave out. Not followed: such devices are not allocated.
    pub skip_node_operations: Vec<Value>,
}

/// A pool, as one of its slices says it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourcePool {
    /// Its name, unique for its driver.
    pub name: String,
    /// Slices of an older generation do not count.
    pub generation: i64,
    /// How many slices this generation has.
    pub resource_slice_count: i64,
}

/// A device.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Device {
    /// Its name, unique in its pool.
    pub name: String,
    /// Its attributes. A name without a domain is in the domain of the driver.
    pub attributes: BTreeMap<String, DeviceAttribute>,
    /// Its capacities, named like attributes.
    pub capacity: BTreeMap<String, DeviceCapacity>,
    /// What it takes from shared counters while it is allocated.
    pub consumes_counters: Vec<CounterConsumption>,
    /// The only node that reaches it, where the slice leaves that to its devices.
    pub node_name: Option<String>,
    /// The nodes that reach it.
    pub node_selector: Option<NodeSelector>,
    /// Whether every node reaches it.
    pub all_nodes: bool,
    /// Its taints.
    pub taints: Vec<DeviceTaint>,
    /// Whether an allocation of it is for the node alone, whichever nodes reach it.
    pub binds_to_node: bool,
    /// Conditions that must hold before a pod is bound.
    pub binding_conditions: Vec<String>,
    /// Conditions of which none may hold: the device will not be ready.
    pub binding_failure_conditions: Vec<String>,
    /// Whether several claims may have it at the same time.
    pub allow_multiple_allocations: bool,
}

/// A capacity of a device.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeviceCapacity {
    /// How much there is.
    pub value: Amount,
    /// Which parts of it may be consumed.
    pub request_policy: Option<CapacityRequestPolicy>,
}

/// Which parts of a capacity may be consumed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CapacityRequestPolicy {
    /// What a request consumes that does not name the capacity.
    pub default: Option<Amount>,
    /// The only amounts, in ascending order.
    pub valid_values: Vec<Amount>,
    /// The range of amounts.
    pub valid_range: Option<CapacityRange>,
}

/// A range of amounts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CapacityRange {
    pub min: Option<Amount>,
    pub max: Option<Amount>,
    /// The steps above the least.
    pub step: Option<Amount>,
}

/// Counters that devices of a pool share.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CounterSet {
    pub name: String,
    pub counters: BTreeMap<String, Counter>,
}

/// A counter.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Counter {
    /// How much there is, or how much of it a device takes.
    pub value: Amount,
}

/// What a device takes from a set of counters.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CounterConsumption {
    /// The set.
    pub counter_set: String,
    /// How much of each counter.
    pub counters: BTreeMap<String, Counter>,
    /// Which devices may share the set. Not followed: a slice with such a device does not count.
    pub compatibility_groups: Vec<String>,
}

/// A taint of a device.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceTaint {
    pub key: String,
    pub value: String,
    pub effect: String,
}

/// Which nodes are meant. Its terms are alternatives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelector {
    /// The alternatives.
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Requirements that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelectorTerm {
    /// Of labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<NodeSelectorRequirement>,
    /// Of fields; the only one is the name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_fields: Vec<NodeSelectorRequirement>,
}

/// A requirement of a label or a field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeSelectorRequirement {
    /// The label or field.
    pub key: String,
    /// How it is compared.
    pub operator: String,
    /// With what.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// A class of devices.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClass {
    pub metadata: ObjectMetadata,
    pub spec: DeviceClassSpec,
}

/// What a class has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeviceClassSpec {
    /// Which devices belong to it.
    pub selectors: Vec<DeviceSelector>,
    /// Settings for the driver.
    pub config: Vec<serde_json::Map<String, Value>>,
    /// The extended resource that is another name of the class.
    pub extended_resource_name: Option<String>,
}

/// A condition of a device.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceSelector {
    /// The condition. Nothing else exists yet.
    pub cel: Option<CelSelector>,
}

/// A condition in CEL.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CelSelector {
    /// The expression.
    pub expression: String,
}

/// A claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaim {
    /// Its name and identity.
    pub metadata: ObjectMetadata,
    /// What it asks for.
    pub spec: ResourceClaimSpec,
    /// What it has.
    pub status: ResourceClaimStatus,
}

/// What a claim asks for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaimSpec {
    /// Devices.
    pub devices: DeviceClaim,
}

/// The devices of a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClaim {
    /// The requests, all of which must be served.
    pub requests: Vec<DeviceRequest>,
    /// What must hold for several devices together.
    pub constraints: Vec<DeviceConstraint>,
    /// Settings for drivers.
    pub config: Vec<serde_json::Map<String, Value>>,
}

/// A request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeviceRequest {
    /// Its name.
    pub name: String,
    /// What it asks for, if there are no alternatives.
    pub exactly: Option<RequestTerms>,
    /// Alternatives, the best first.
    pub first_available: Vec<RequestTerms>,
}

/// What a request or an alternative asks for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RequestTerms {
    /// The name of an alternative.
    pub name: String,
    /// The class of the devices.
    pub device_class_name: String,
    /// More conditions of the devices.
    pub selectors: Vec<DeviceSelector>,
    /// How the number of devices is known.
    pub allocation_mode: AllocationMode,
    /// How many devices, if they are counted.
    pub count: Option<i64>,
    /// Whether devices are wanted beside their users, to look after them.
    pub admin_access: bool,
    /// The taints that are put up with.
    pub tolerations: Vec<DeviceToleration>,
    /// How much of each device.
    pub capacity: Option<CapacityRequirements>,
    /// Attributes that an expression makes. Not followed: such a request is refused.
    pub derived_attributes: Vec<Value>,
}

/// How the number of devices is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum AllocationMode {
    /// The request says it.
    #[default]
    ExactCount,
    /// All devices that match.
    All,
    /// A mode that this crate does not know.
    Unknown(String),
}

impl From<String> for AllocationMode {
    fn from(text: String) -> Self {
        match text.as_str() {
            "" | "ExactCount" => Self::ExactCount,
            "All" => Self::All,
            _ => Self::Unknown(text),
        }
    }
}

/// How much of a device is asked for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CapacityRequirements {
    /// By the name of the capacity.
    pub requests: CapacityMap,
}

/// A taint that a request puts up with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeviceToleration {
    /// The key of the taint; empty is any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// How values are compared: `Equal` or `Exists`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operator: String,
    /// The value of the taint.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// The effect of the taint; empty is any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub effect: String,
    /// For how long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// What must hold for several devices together.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeviceConstraint {
    /// The requests and alternatives that it is about; none is all.
    pub requests: Vec<String>,
    /// The attribute that has the same value for all.
    pub match_attribute: Option<String>,
    /// The attribute that has another value for each.
    pub distinct_attribute: Option<String>,
}

/// What a claim has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceClaimStatus {
    /// Its devices, once it has any.
    pub allocation: Option<AllocationResult>,
    /// The pods that may use them.
    pub reserved_for: Vec<ConsumerReference>,
    /// What the drivers say about them.
    pub devices: Vec<AllocatedDeviceStatus>,
}

/// What a driver says about a device of a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllocatedDeviceStatus {
    pub driver: String,
    pub pool: String,
    pub device: String,
    pub conditions: Vec<DeviceCondition>,
}

/// A condition of a device.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceCondition {
    /// Its name.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it holds: `True`, `False` or `Unknown`.
    pub status: String,
    pub reason: String,
    pub message: String,
}

/// A user of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerReference {
    /// Its API group; empty for pods.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// Its resource: `pods`.
    pub resource: String,
    pub name: String,
    pub uid: String,
}

/// An allocation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AllocationResult {
    /// The devices.
    pub devices: DeviceAllocationResult,
    /// The nodes that reach them; missing is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
    /// When they were written into the claim, in the API server's form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation_timestamp: Option<String>,
}

/// The devices of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceAllocationResult {
    /// Each device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<AllocatedDevice>,
    /// Settings for their drivers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<serde_json::Map<String, Value>>,
}

/// A device of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AllocatedDevice {
    /// The request, with `/` and the alternative if it had any.
    pub request: String,
    pub driver: String,
    pub pool: String,
    pub device: String,
    /// Whether it is used beside its users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_access: Option<bool>,
    /// The taints that are put up with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<DeviceToleration>,
    /// Tells this share of the device from others.
    #[serde(rename = "shareID", skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
    /// How much of the device.
    #[serde(skip_serializing_if = "CapacityMap::is_empty")]
    pub consumed_capacity: CapacityMap,
    /// Conditions that must hold before a pod is bound.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub binding_conditions: Vec<String>,
    /// Conditions of which none may hold: the device will not be ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub binding_failure_conditions: Vec<String>,
}
