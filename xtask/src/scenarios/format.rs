//! The file format of a scheduling scenario; docs/development/kai-cases.md describes the fields.
//!
//! Only what decides a result is read; everything else in a file is ignored.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::defaults;

/// A scenario: a cluster, the actions, and the expected result.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Scenario {
    pub(crate) mode: ScenarioMode,
    pub(crate) actions: Vec<String>,
    #[serde(default)]
    pub(crate) rounds: Option<ScenarioRounds>,
    #[serde(default = "defaults::settings")]
    pub(crate) settings: ScenarioSettings,
    pub(crate) nodes: Vec<ScenarioNode>,
    #[serde(default)]
    pub(crate) topologies: Vec<ScenarioTopology>,
    pub(crate) queues: Vec<ScenarioQueue>,
    pub(crate) jobs: Vec<ScenarioJob>,
    #[serde(default)]
    pub(crate) dra: ScenarioDra,
    pub(crate) expected: ScenarioExpectation,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ScenarioMode {
    Cycle,
    Rounds,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct ScenarioRounds {
    pub(crate) until_match: usize,
    pub(crate) after_match: usize,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioSettings {
    /// The plugins of KAI that are on; all of them if absent.
    #[serde(default)]
    pub(crate) plugins: Option<Vec<ScenarioPlugin>>,
    #[serde(default = "defaults::yes")]
    pub(crate) predicates: bool,
    #[serde(default)]
    pub(crate) dra_feature_gate: bool,
    #[serde(default)]
    pub(crate) node_placement: Option<NodePlacement>,
    #[serde(default)]
    pub(crate) gpu_placement: Option<String>,
    #[serde(default)]
    pub(crate) staleness_grace_period_s: f64,
    #[serde(default = "defaults::no_limit")]
    pub(crate) max_consolidation_preemptees: i64,
    #[serde(default = "defaults::yes")]
    pub(crate) allow_consolidating_reclaim: bool,
    /// Behaviours to copy from KAI although the policy has a better way.
    #[serde(default)]
    pub(crate) as_kai: Vec<ScenarioKaiBehavior>,
}

/// A behaviour of KAI that the policy does not have.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScenarioKaiBehavior {
    TakesBack,
    NarrowsDomains,
    CountsLeaving,
    NeedsAllSets,
    ReturnsOnce,
    KeepsMove,
}

/// A plugin by its name, or an object with its name and arguments.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum ScenarioPlugin {
    Name(String),
    Object { name: String },
}

impl ScenarioPlugin {
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
pub(crate) struct ScenarioNode {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) gpus_allocatable: i64,
    #[serde(default)]
    pub(crate) dra_gpus: i64,
    #[serde(default = "defaults::card")]
    pub(crate) gpu_memory_mib: u64,
    /// Cards that are listed one by one, instead of the two fields above. Only our own scenarios have them.
    #[serde(default)]
    pub(crate) cards: Vec<ScenarioCard>,
    #[serde(default = "defaults::cpu")]
    pub(crate) cpu_millis: f64,
    #[serde(default = "defaults::memory")]
    pub(crate) mem_bytes: f64,
    #[serde(default = "defaults::pods")]
    pub(crate) max_pods: i64,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) mig_strategy: Option<String>,
    #[serde(default)]
    pub(crate) mig_instances: BTreeMap<String, i64>,
    #[serde(default)]
    pub(crate) numa: Option<ScenarioNuma>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioCard {
    pub(crate) name: String,
    pub(crate) memory_mib: u64,
    #[serde(default = "defaults::yes")]
    pub(crate) healthy: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioNuma {
    pub(crate) policy: String,
    pub(crate) zones: Vec<ScenarioZone>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioZone {
    pub(crate) id: String,
    pub(crate) allocatable: ScenarioZoneAmounts,
    pub(crate) available: ScenarioZoneAmounts,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct ScenarioZoneAmounts {
    #[serde(default)]
    pub(crate) cpu_millis: f64,
    #[serde(default)]
    pub(crate) mem_bytes: f64,
    #[serde(default)]
    pub(crate) gpus: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioTopology {
    pub(crate) name: String,
    pub(crate) levels: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioQueue {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) parent: Option<String>,
    #[serde(default)]
    pub(crate) created_order: u64,
    #[serde(default = "defaults::priority")]
    pub(crate) priority: i32,
    #[serde(default)]
    pub(crate) deserved_gpus: f64,
    #[serde(default = "defaults::unlimited")]
    pub(crate) max_gpus: f64,
    #[serde(default)]
    pub(crate) over_quota_weight: f64,
    #[serde(default = "defaults::unlimited")]
    pub(crate) deserved_cpu_millis: f64,
    #[serde(default = "defaults::unlimited")]
    pub(crate) max_cpu_millis: f64,
    #[serde(default = "defaults::one")]
    pub(crate) cpu_over_quota_weight: f64,
    #[serde(default = "defaults::unlimited")]
    pub(crate) deserved_mem_bytes: f64,
    #[serde(default = "defaults::unlimited")]
    pub(crate) max_mem_bytes: f64,
    #[serde(default = "defaults::one")]
    pub(crate) mem_over_quota_weight: f64,
    #[serde(default)]
    pub(crate) preempt_min_runtime_s: Option<f64>,
    #[serde(default)]
    pub(crate) reclaim_min_runtime_s: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioJob {
    pub(crate) name: String,
    pub(crate) queue: String,
    pub(crate) priority: i32,
    pub(crate) preemptible: bool,
    #[serde(default = "defaults::one")]
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
    pub(crate) subgroups: ScenarioSubGroup,
    pub(crate) tasks: Vec<ScenarioTask>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioSubGroup {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) min_sub_groups: Option<usize>,
    #[serde(default)]
    pub(crate) topology: Option<ScenarioTopologyConstraint>,
    #[serde(default)]
    pub(crate) groups: Vec<ScenarioSubGroup>,
    #[serde(default)]
    pub(crate) pod_sets: Vec<ScenarioPodSet>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioPodSet {
    pub(crate) name: String,
    pub(crate) min_available: usize,
    #[serde(default)]
    pub(crate) topology: Option<ScenarioTopologyConstraint>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioTopologyConstraint {
    pub(crate) topology: String,
    #[serde(default)]
    pub(crate) required_level: Option<String>,
    #[serde(default)]
    pub(crate) preferred_level: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioTask {
    pub(crate) id: String,
    #[serde(default = "defaults::set")]
    pub(crate) subgroup: String,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) node: Option<String>,
    #[serde(default)]
    pub(crate) nominated: bool,
    pub(crate) gpu: ScenarioGpuRequest,
    #[serde(default)]
    pub(crate) gpu_groups: Vec<String>,
    #[serde(default)]
    pub(crate) mig: BTreeMap<String, i64>,
    #[serde(default)]
    pub(crate) legacy_mig: bool,
    #[serde(default = "defaults::millis")]
    pub(crate) cpu_millis: f64,
    #[serde(default = "defaults::bytes")]
    pub(crate) mem_bytes: f64,
    #[serde(default)]
    pub(crate) order_priority: Option<i64>,
    #[serde(default)]
    pub(crate) node_affinity: Vec<String>,
    #[serde(default)]
    pub(crate) pod_affinity: Option<ScenarioPodAffinity>,
    #[serde(default)]
    pub(crate) resource_claims: Vec<String>,
    #[serde(default)]
    pub(crate) numa_observed: Option<BTreeMap<String, ScenarioZoneAmounts>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioGpuRequest {
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
pub(crate) struct ScenarioPodAffinity {
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) affinity_topology_key: Option<String>,
    #[serde(default)]
    pub(crate) anti_affinity_topology_key: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ScenarioDra {
    #[serde(default)]
    pub(crate) device_classes: Vec<String>,
    #[serde(default)]
    pub(crate) slices: Vec<ScenarioResourceSlice>,
    #[serde(default)]
    pub(crate) claims: Vec<ScenarioClaim>,
}

/// Devices of a node.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioResourceSlice {
    pub(crate) device_class: String,
    pub(crate) node: String,
    pub(crate) count: i64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioClaim {
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
    pub(crate) reserved_for: Vec<ClaimConsumer>,
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
    /// The node, in everything that the fakes create.
    pub(crate) pool: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ClaimConsumer {
    pub(crate) name: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScenarioExpectation {
    #[serde(default)]
    pub(crate) jobs: BTreeMap<String, ExpectedPods>,
    #[serde(default)]
    pub(crate) tasks: BTreeMap<String, ExpectedPods>,
    #[serde(default)]
    pub(crate) nodes: BTreeMap<String, ExpectedNode>,
    #[serde(default = "defaults::any_number")]
    pub(crate) max_cache_binds: usize,
    #[serde(default = "defaults::any_number")]
    pub(crate) max_cache_evictions: usize,
    #[serde(default = "defaults::any_number")]
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
    pub(crate) numa_zones_available: Option<BTreeMap<String, ScenarioZoneAmounts>>,
}
