//! A scheduling scenario as the files have it; docs/development/kai-cases.md describes the fields.
//!
//! Only what decides an outcome is read; everything else in a file is ignored.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::usual;

/// A scenario: a cluster, what is done to it and what must come of it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Scenario {
    pub(crate) mode: Mode,
    pub(crate) actions: Vec<String>,
    #[serde(default)]
    pub(crate) rounds: Option<Rounds>,
    #[serde(default = "usual::settings")]
    pub(crate) settings: Settings,
    pub(crate) nodes: Vec<Node>,
    #[serde(default)]
    pub(crate) topologies: Vec<Topology>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) jobs: Vec<Job>,
    #[serde(default)]
    pub(crate) dra: Dra,
    pub(crate) expected: Expected,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Cycle,
    Rounds,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Rounds {
    pub(crate) until_match: usize,
    pub(crate) after_match: usize,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Settings {
    /// The plugins of KAI that are on; all of them when not given.
    #[serde(default)]
    pub(crate) plugins: Option<Vec<Plugin>>,
    #[serde(default = "usual::yes")]
    pub(crate) predicates: bool,
    #[serde(default)]
    pub(crate) dra_feature_gate: bool,
    #[serde(default)]
    pub(crate) node_placement: Option<NodePlacement>,
    #[serde(default)]
    pub(crate) gpu_placement: Option<String>,
    #[serde(default)]
    pub(crate) staleness_grace_period_s: f64,
    #[serde(default = "usual::no_limit")]
    pub(crate) max_consolidation_preemptees: i64,
    #[serde(default = "usual::yes")]
    pub(crate) allow_consolidating_reclaim: bool,
    /// What is to be as in KAI although the policy has a better way.
    #[serde(default)]
    pub(crate) as_kai: Vec<KaisWay>,
}

/// A way of KAI's that is not the policy's.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KaisWay {
    TakesBack,
    NarrowsDomains,
    CountsLeaving,
    NeedsAllSets,
    ReturnsOnce,
}

/// A plugin by its name, or an object with its name and what else there is to know.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Plugin {
    Name(String),
    Object { name: String },
}

impl Plugin {
    pub(crate) fn name(&self) -> &str {
        let (Self::Name(name) | Self::Object { name }) = self;
        name
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct NodePlacement {
    pub(crate) cpu: String,
    pub(crate) gpu: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) gpus_allocatable: i64,
    #[serde(default)]
    pub(crate) dra_gpus: i64,
    #[serde(default = "usual::card")]
    pub(crate) gpu_memory_mib: u64,
    /// Cards that are known one by one, instead of the two above. Only scenarios of our own have them.
    #[serde(default)]
    pub(crate) cards: Vec<Card>,
    #[serde(default = "usual::cpu")]
    pub(crate) cpu_millis: f64,
    #[serde(default = "usual::memory")]
    pub(crate) mem_bytes: f64,
    #[serde(default = "usual::pods")]
    pub(crate) max_pods: i64,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) mig_strategy: Option<String>,
    #[serde(default)]
    pub(crate) mig_instances: BTreeMap<String, i64>,
    #[serde(default)]
    pub(crate) numa: Option<Numa>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Card {
    pub(crate) name: String,
    pub(crate) memory_mib: u64,
    #[serde(default = "usual::yes")]
    pub(crate) healthy: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Numa {
    pub(crate) policy: String,
    pub(crate) zones: Vec<Zone>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Zone {
    pub(crate) id: String,
    pub(crate) allocatable: ZoneAmounts,
    pub(crate) available: ZoneAmounts,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct ZoneAmounts {
    #[serde(default)]
    pub(crate) cpu_millis: f64,
    #[serde(default)]
    pub(crate) mem_bytes: f64,
    #[serde(default)]
    pub(crate) gpus: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Topology {
    pub(crate) name: String,
    pub(crate) levels: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Queue {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) parent: Option<String>,
    #[serde(default)]
    pub(crate) created_order: u64,
    #[serde(default = "usual::priority")]
    pub(crate) priority: i32,
    #[serde(default)]
    pub(crate) deserved_gpus: f64,
    #[serde(default = "usual::unlimited")]
    pub(crate) max_gpus: f64,
    #[serde(default)]
    pub(crate) over_quota_weight: f64,
    #[serde(default = "usual::unlimited")]
    pub(crate) deserved_cpu_millis: f64,
    #[serde(default = "usual::unlimited")]
    pub(crate) max_cpu_millis: f64,
    #[serde(default = "usual::one")]
    pub(crate) cpu_over_quota_weight: f64,
    #[serde(default = "usual::unlimited")]
    pub(crate) deserved_mem_bytes: f64,
    #[serde(default = "usual::unlimited")]
    pub(crate) max_mem_bytes: f64,
    #[serde(default = "usual::one")]
    pub(crate) mem_over_quota_weight: f64,
    #[serde(default)]
    pub(crate) preempt_min_runtime_s: Option<f64>,
    #[serde(default)]
    pub(crate) reclaim_min_runtime_s: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) queue: String,
    pub(crate) priority: i32,
    pub(crate) preemptible: bool,
    #[serde(default = "usual::one")]
    pub(crate) age_minutes: f64,
    #[serde(default)]
    pub(crate) last_start_age_s: Option<f64>,
    #[serde(default)]
    pub(crate) preemption_delay_s: Option<f64>,
    #[serde(default)]
    pub(crate) stale_for_s: Option<f64>,
    #[serde(default)]
    pub(crate) staleness_grace_period_s: Option<f64>,
    #[serde(default)]
    pub(crate) delete_on_evict: bool,
    #[serde(default)]
    pub(crate) qos_class: Option<String>,
    pub(crate) subgroups: Group,
    pub(crate) tasks: Vec<Task>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Group {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) min_sub_groups: Option<usize>,
    #[serde(default)]
    pub(crate) topology: Option<Constraint>,
    #[serde(default)]
    pub(crate) groups: Vec<Group>,
    #[serde(default)]
    pub(crate) pod_sets: Vec<PodSet>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PodSet {
    pub(crate) name: String,
    pub(crate) min_available: usize,
    #[serde(default)]
    pub(crate) topology: Option<Constraint>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Constraint {
    pub(crate) topology: String,
    #[serde(default)]
    pub(crate) required_level: Option<String>,
    #[serde(default)]
    pub(crate) preferred_level: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Task {
    pub(crate) id: String,
    #[serde(default = "usual::set")]
    pub(crate) subgroup: String,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) node: Option<String>,
    pub(crate) gpu: Gpu,
    #[serde(default)]
    pub(crate) gpu_groups: Vec<String>,
    #[serde(default)]
    pub(crate) mig: BTreeMap<String, i64>,
    #[serde(default)]
    pub(crate) legacy_mig: bool,
    #[serde(default = "usual::millis")]
    pub(crate) cpu_millis: f64,
    #[serde(default = "usual::bytes")]
    pub(crate) mem_bytes: f64,
    #[serde(default)]
    pub(crate) order_priority: Option<i64>,
    #[serde(default)]
    pub(crate) node_affinity: Vec<String>,
    #[serde(default)]
    pub(crate) pod_affinity: Option<PodAffinity>,
    #[serde(default)]
    pub(crate) resource_claims: Vec<String>,
    #[serde(default)]
    pub(crate) numa_observed: Option<BTreeMap<String, ZoneAmounts>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Gpu {
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) gpus: f64,
    #[serde(default)]
    pub(crate) portion: Option<f64>,
    #[serde(default)]
    pub(crate) gpu_memory_mib: Option<u64>,
    #[serde(default)]
    pub(crate) num_devices: Option<u32>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PodAffinity {
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) affinity_topology_key: Option<String>,
    #[serde(default)]
    pub(crate) anti_affinity_topology_key: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Dra {
    #[serde(default)]
    pub(crate) device_classes: Vec<String>,
    #[serde(default)]
    pub(crate) slices: Vec<Slice>,
    #[serde(default)]
    pub(crate) claims: Vec<Claim>,
}

/// Devices of a node.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Slice {
    pub(crate) device_class: String,
    pub(crate) node: String,
    pub(crate) count: i64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Claim {
    pub(crate) name: String,
    pub(crate) device_class: String,
    pub(crate) count: i64,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) status: Option<ClaimStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClaimStatus {
    #[serde(default)]
    pub(crate) allocation: Option<ClaimAllocation>,
    #[serde(default)]
    pub(crate) reserved_for: Vec<Consumer>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ClaimAllocation {
    #[serde(default)]
    pub(crate) devices: ClaimDevices,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ClaimDevices {
    #[serde(default)]
    pub(crate) results: Vec<ClaimResult>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ClaimResult {
    /// The node, in all that the fakes make.
    pub(crate) pool: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Consumer {
    pub(crate) name: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Expected {
    #[serde(default)]
    pub(crate) jobs: BTreeMap<String, ExpectedPods>,
    #[serde(default)]
    pub(crate) tasks: BTreeMap<String, ExpectedPods>,
    #[serde(default)]
    pub(crate) nodes: BTreeMap<String, ExpectedNode>,
    #[serde(default = "usual::any_number")]
    pub(crate) max_cache_binds: usize,
    #[serde(default = "usual::any_number")]
    pub(crate) max_cache_evictions: usize,
    #[serde(default = "usual::any_number")]
    pub(crate) max_pipelined: usize,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ExpectedPods {
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) node: Option<String>,
    #[serde(default)]
    pub(crate) gpus_required: Option<f64>,
    #[serde(default)]
    pub(crate) gpus_accepted: Option<f64>,
    #[serde(default)]
    pub(crate) cpu_millis_required: Option<f64>,
    #[serde(default)]
    pub(crate) mem_bytes_required: Option<f64>,
    #[serde(default)]
    pub(crate) numa_zones: Option<Vec<usize>>,
    #[serde(default)]
    pub(crate) last_start_older_than_s: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ExpectedNode {
    pub(crate) releasing_gpus: f64,
    pub(crate) idle_gpus: f64,
    #[serde(default)]
    pub(crate) numa_zones_available: Option<BTreeMap<String, ZoneAmounts>>,
}
