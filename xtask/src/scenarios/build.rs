//! Builds the policy's cluster from a scenario.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apportion_abi::{Bytes, GpuFraction, Share};
use apportion_policy::Action;
use apportion_policy::cluster::{
    Cluster, ClusterTopology, Job, KaiBehavior, ListedCard, MigStrategy, Node, NumaPolicy,
    NumaScope, NumaZone, PlacementStrategy, PodAffinityTerm, PodSet, PolicySettings, Queue, Quota,
    ResourceClaim, SharedCardPreference, StalenessGracePeriod, SubGroupSet, Task, TaskGpuRequest,
    TaskStatus, TopologyConstraint, ZoneAmounts,
};

use super::format;

/// The time of a scenario; late enough that no age is negative.
pub(crate) const NOW: Duration = Duration::from_secs(100_000_000);

/// The cluster of a scenario.
pub(crate) fn cluster(scenario: &format::Scenario) -> Result<Cluster> {
    let all_jobs = scenario.jobs.iter();
    Ok(Cluster {
        nodes: (scenario.nodes.iter())
            .map(|given| node(given, &scenario.dra))
            .collect(),
        queues: scenario.queues.iter().map(queue).collect(),
        jobs: all_jobs
            .map(|given| job(given).map(Arc::new))
            .collect::<Result<_>>()?,
        bystanders: Vec::new(),
        topologies: (scenario.topologies.iter())
            .map(|topology| ClusterTopology {
                name: topology.name.clone(),
                levels: topology.levels.clone(),
            })
            .collect(),
        allocator: None,
        claims: scenario.dra.claims.iter().map(claim).collect(),
        settings: settings(&scenario.settings),
    })
}

/// An action by KAI's name.
pub(crate) fn action(name: &str) -> Result<Action> {
    Ok(match name {
        "allocate" => Action::Allocate,
        "consolidation" => Action::Consolidate,
        "reclaim" => Action::Reclaim,
        "preempt" => Action::Preempt,
        "stalegangeviction" => Action::EvictStaleGangs,
        other => bail!("unknown action {other}"),
    })
}

/// A status by KAI's name.
pub(crate) fn status(name: &str) -> Result<TaskStatus> {
    Ok(match name {
        "Pending" => TaskStatus::Pending,
        "Gated" => TaskStatus::Gated,
        "Binding" | "Bound" | "Allocated" => TaskStatus::Binding,
        "Running" => TaskStatus::Running,
        "Pipelined" => TaskStatus::Pipelined,
        "Releasing" => TaskStatus::Releasing,
        "StuckInReleasing" => TaskStatus::StuckInReleasing,
        "Succeeded" => TaskStatus::Succeeded,
        "Failed" => TaskStatus::Failed,
        other => bail!("unknown status {other}"),
    })
}

fn settings(given: &format::ScenarioSettings) -> PolicySettings {
    let plugins: Option<BTreeSet<&str>> = given
        .plugins
        .as_ref()
        .map(|plugins| plugins.iter().map(format::ScenarioPlugin::name).collect());
    let has = |name: &str| {
        plugins
            .as_ref()
            .is_none_or(|plugins| plugins.contains(name))
    };
    let strategy = |of: fn(&format::NodePlacement) -> &str| match &given.node_placement {
        None if plugins.is_some() => PlacementStrategy::ByName,
        None => PlacementStrategy::Binpack,
        Some(placement) if of(placement) == "spread" => PlacementStrategy::Spread,
        Some(_) => PlacementStrategy::Binpack,
    };
    PolicySettings {
        gpu_nodes: strategy(|placement| &placement.gpu),
        cpu_nodes: strategy(|placement| &placement.cpu),
        cards: match given.gpu_placement.as_deref() {
            Some("spread") => PlacementStrategy::Spread,
            None if plugins.is_some() => PlacementStrategy::ByName,
            _ => PlacementStrategy::Binpack,
        },
        keeps_kinds_apart: has("resourcetype"),
        prefers_free: has("nodeavailability"),
        // With a list of plugins the policy follows KAI's configuration.
        shared_cards: match &plugins {
            None => SharedCardPreference::BestFit,
            Some(plugins) if plugins.contains("gpusharingorder") => SharedCardPreference::Any,
            Some(_) => SharedCardPreference::NoMatter,
        },
        has_quotas: has("proportion"),
        by_priority: has("priority"),
        minimum_first: has("elastic"),
        has_predicates: given.predicates,
        allows_claims: given.dra_feature_gate,
        consolidating_reclaim: given.allow_consolidating_reclaim,
        max_consolidated: usize::try_from(given.max_consolidation_preemptees).ok(),
        grace: grace(given.staleness_grace_period_s),
        as_kai: given.as_kai.iter().map(kais_way).collect(),
        ..PolicySettings::default()
    }
}

fn kais_way(way: &format::ScenarioKaiBehavior) -> KaiBehavior {
    match way {
        format::ScenarioKaiBehavior::TakesBack => KaiBehavior::TakesBack,
        format::ScenarioKaiBehavior::NarrowsDomains => KaiBehavior::NarrowsDomains,
        format::ScenarioKaiBehavior::CountsLeaving => KaiBehavior::CountsLeaving,
        format::ScenarioKaiBehavior::NeedsAllSets => KaiBehavior::NeedsAllSets,
        format::ScenarioKaiBehavior::ReturnsOnce => KaiBehavior::ReturnsOnce,
        format::ScenarioKaiBehavior::KeepsMove => KaiBehavior::KeepsMove,
    }
}

fn grace(seconds: f64) -> StalenessGracePeriod {
    Duration::try_from_secs_f64(seconds)
        .map_or(StalenessGracePeriod::Forever, StalenessGracePeriod::For)
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn ago(age: f64) -> Duration {
    NOW.saturating_sub(seconds(age))
}

fn node(node: &format::ScenarioNode, dra: &format::ScenarioDra) -> Node {
    Node {
        overcommit: None,
        name: node.name.clone(),
        cpu_millis: node.cpu_millis as i64,
        memory: node.mem_bytes as i64,
        pods: node.max_pods,
        cards: node.gpus_allocatable + node.dra_gpus,
        card_memory: Bytes::from_mib(node.gpu_memory_mib),
        listed: (node.cards.iter())
            .map(|card| ListedCard {
                name: card.name.clone(),
                memory: Bytes::from_mib(card.memory_mib),
                is_healthy: card.healthy,
            })
            .collect(),
        mig: match node.mig_strategy.as_deref() {
            Some("mixed") => Some(MigStrategy::Mixed),
            Some("single") => Some(MigStrategy::Single),
            _ => None,
        },
        partitions: node.mig_instances.clone(),
        devices: devices(&node.name, dra),
        claimable_cards: 0,
        labels: Arc::new(node.labels.clone().into_iter().collect()),
        numa: match node.numa.as_ref().map(|numa| numa.policy.as_str()) {
            Some("SingleNUMANode") => NumaPolicy::SingleNode,
            Some("Restricted") => NumaPolicy::Restricted,
            Some("BestEffort") => NumaPolicy::BestEffort,
            _ => NumaPolicy::None,
        },
        // KAI's cases have pods of one container.
        numa_scope: NumaScope::Container,
        zones: (node.numa.iter().flat_map(|numa| &numa.zones))
            .map(|zone| NumaZone {
                name: zone.id.clone(),
                allocatable: zone_amounts(zone.allocatable),
                available: zone_amounts(zone.available),
            })
            .collect(),
    }
}

/// The devices of a node, by class. Devices of a class that does not exist cannot be claimed.
fn devices(node: &str, dra: &format::ScenarioDra) -> BTreeMap<String, i64> {
    let mut devices = BTreeMap::new();
    for slice in dra.slices.iter().filter(|slice| slice.node == node) {
        if dra.device_classes.contains(&slice.device_class) {
            *devices.entry(slice.device_class.clone()).or_default() += slice.count;
        }
    }
    devices
}

/// The resources that are aligned with NUMA zones.
pub(crate) fn zone_amounts(given: format::ScenarioZoneAmounts) -> ZoneAmounts {
    ZoneAmounts {
        cpu: given.cpu_millis as i64,
        memory: given.mem_bytes as i64,
        cards: given.gpus as i64,
    }
}

fn claim(claim: &format::ScenarioClaim) -> ResourceClaim {
    let status = claim.status.clone().unwrap_or_default();
    let devices = status
        .allocation
        .map(|allocation| allocation.devices.results);
    ResourceClaim {
        name: claim.name.clone(),
        queue: claim.labels.get("kai.scheduler/queue").cloned(),
        class: claim.device_class.clone(),
        devices: claim.count,
        is_of_cards: claim.device_class.contains("gpu"),
        is_for_one_pod: false,
        node: devices
            .and_then(|results| results.first().cloned())
            .map(|result| result.pool),
        consumers: status.reserved_for.len(),
        ..ResourceClaim::default()
    }
}

fn queue(queue: &format::ScenarioQueue) -> Queue {
    let quota = |deserved, limit, weight| Quota {
        deserved,
        limit,
        weight,
    };
    Queue {
        name: queue.name.clone(),
        parent: queue.parent.clone().filter(|parent| !parent.is_empty()),
        created: Duration::from_secs(queue.created_order),
        priority: queue.priority,
        cpu: quota(
            queue.deserved_cpu_millis,
            queue.max_cpu_millis,
            queue.cpu_over_quota_weight,
        ),
        memory: quota(
            queue.deserved_mem_bytes,
            queue.max_mem_bytes,
            queue.mem_over_quota_weight,
        ),
        gpu: quota(queue.deserved_gpus, queue.max_gpus, queue.over_quota_weight),
        usage: [0.0; 3],
        preempt_min_runtime: queue.preempt_min_runtime_s.map(seconds),
        reclaim_min_runtime: queue.reclaim_min_runtime_s.map(seconds),
        // KAI's cases know no limits above requests.
        burst_limit: None,
    }
}

fn job(job: &format::ScenarioJob) -> Result<Job> {
    let is_guaranteed = job.qos_class.as_deref() == Some("Guaranteed");
    let tasks = job
        .tasks
        .iter()
        .map(|given| {
            Ok(Task {
                is_guaranteed,
                ..task(given)?
            })
        })
        .collect::<Result<Vec<Task>>>()?;
    let runs = tasks.iter().any(|task| task.status.is_allocated());
    // Pods from an earlier round count as started 60 seconds ago, as pods that run from the beginning.
    let started = job.last_start_age_s.or(runs.then_some(60.0));
    Ok(Job {
        name: job.name.clone(),
        queue: job.queue.clone(),
        priority: job.priority,
        is_preemptible: job.preemptible,
        created: ago(job.age_minutes * 60.0),
        last_start: started.map(ago),
        last_eviction: None,
        preemption_delay: job.preemption_delay_s.map(seconds).unwrap_or_default(),
        stale_since: job.stale_for_s.map(ago),
        grace: job.staleness_grace_period_s.map(grace),
        root: group(&job.subgroups),
        tasks,
    })
}

fn group(given: &format::ScenarioSubGroup) -> SubGroupSet {
    SubGroupSet {
        name: given.name.clone(),
        min_members: given.min_sub_groups,
        topology: given.topology.as_ref().and_then(constraint),
        groups: given.groups.iter().map(group).collect(),
        sets: (given.pod_sets.iter())
            .map(|set| PodSet {
                name: set.name.clone(),
                min_available: set.min_available,
                topology: set.topology.as_ref().and_then(constraint),
            })
            .collect(),
    }
}

fn constraint(given: &format::ScenarioTopologyConstraint) -> Option<TopologyConstraint> {
    let level = |level: &Option<String>| level.clone().filter(|level| !level.is_empty());
    (!given.topology.is_empty()).then(|| TopologyConstraint {
        topology: given.topology.clone(),
        required: level(&given.required_level),
        preferred: level(&given.preferred_level),
    })
}

fn task(task: &format::ScenarioTask) -> Result<Task> {
    let affinity = task.pod_affinity.as_ref();
    let neighbours = |key: fn(&format::ScenarioPodAffinity) -> &Option<String>| {
        let wanted = affinity.and_then(|affinity| {
            key(affinity)
                .as_ref()
                .map(|domain| PodAffinityTerm::with(&affinity.labels, domain))
        });
        wanted.into_iter().collect()
    };
    Ok(Task {
        limit: None,
        pinned: None,
        foreign_limits: None,
        name: task.id.clone(),
        set: task.subgroup.clone(),
        status: status(&task.state)?,
        node: task.node.clone(),
        on: groups(task),
        cards: cards(task).with_context(|| format!("failed to read task {}", task.id))?,
        cpu_millis: task.cpu_millis as i64,
        memory: task.mem_bytes as i64,
        leads: false,
        is_nominated: task.nominated,
        order: task.order_priority,
        node_affinity: match task.node_affinity.as_slice() {
            [] => Arc::default(),
            values => Arc::new(vec![("kai.scheduler/type".to_owned(), values.to_vec())]),
        },
        labels: affinity
            .map(|given| Arc::new(given.labels.clone().into_iter().collect()))
            .unwrap_or_default(),
        near: neighbours(|affinity| &affinity.affinity_topology_key),
        apart: neighbours(|affinity| &affinity.anti_affinity_topology_key),
        even: Vec::new(),
        prefers: Vec::new(),
        is_legacy_mig: task.legacy_mig,
        claims: task.resource_claims.clone(),
        extended: Box::default(),
        zones: (task.numa_observed.iter().flatten())
            .map(|(zone, amounts)| (zone.clone(), zone_amounts(*amounts)))
            .collect(),
        is_guaranteed: false,
        containers: None,
    })
}

/// The labels of shared cards. Labels with `auto:` stand for a whole card and are left out.
fn groups(task: &format::ScenarioTask) -> Vec<String> {
    let groups = task.gpu_groups.iter();
    groups
        .filter(|group| !group.starts_with("auto:"))
        .cloned()
        .collect()
}

fn cards(task: &format::ScenarioTask) -> Result<TaskGpuRequest> {
    let gpu = &task.gpu;
    let shared = |share| TaskGpuRequest::Shared {
        share,
        devices: gpu.num_devices.unwrap_or(1).max(1),
    };
    Ok(match gpu.kind.as_str() {
        "none" => TaskGpuRequest::None,
        "whole" => TaskGpuRequest::Whole(gpu.gpus as i64),
        "fraction" => {
            let portion = gpu.portion.context("a fraction has a portion")?;
            if portion >= 1.0 {
                shared(Share::Whole)
            } else {
                let fraction: GpuFraction = format!("{portion}").parse()?;
                shared(Share::Fraction(fraction))
            }
        }
        "memory" => {
            let mib = gpu.gpu_memory_mib.context("memory has an amount")?;
            shared(Share::Memory(Bytes::from_mib(mib)))
        }
        "mig" => TaskGpuRequest::Partitions(task.mig.clone()),
        other => bail!("unknown kind of GPU request {other}"),
    })
}
