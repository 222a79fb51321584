//! What keeps a pod from each node, in numbers.

use std::cmp::Reverse;

use apportion_abi::{Bytes, Holder};
use apportion_policy::AffinityRefusal;
use apportion_policy::cluster::{
    MigStrategy, Node, NumaPolicy, NumaZone, Task, TaskGpuRequest, ZoneAmounts,
};
use serde::Serialize;

use super::decided_cluster::DecidedCluster;
use super::formatting;
use super::unmet_requirement::UnmetRequirement;
use apportion_model as objects;
use apportion_model::admission::{TAKES_CARDS, TAKES_SHARES};
use apportion_model::config_maps;
use apportion_model::shards::kinds;
use apportion_model::snapshot::ClusterSnapshot;

mod cards;

/// A card and its holders.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CardView {
    pub(crate) card: String,
    pub(crate) free_bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) holders: Vec<HolderView>,
}

/// A pod that holds a part of a card.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HolderView {
    pub(crate) pod: String,
    pub(crate) bytes: u64,
}

/// A node as a pod sees it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NodeView {
    pub(crate) node: String,
    /// What it lacks; `None` if the pod fits.
    pub(crate) unmet_requirement: Option<UnmetRequirement>,
    /// The same in words.
    pub(crate) message: String,
    pub(crate) idle_cards: i64,
    pub(crate) cards: Vec<CardView>,
}

/// All nodes as a pod sees them after the decisions, by name.
pub(crate) fn nodes(
    snapshot: &ClusterSnapshot<'_>,
    decided: &DecidedCluster<'_>,
    task: &Task,
) -> Vec<NodeView> {
    let mut views = without_affinity(snapshot, decided, task);
    for view in views
        .iter_mut()
        .filter(|view| view.unmet_requirement.is_none())
    {
        if let Some((unmet, message)) = affinity(decided, task, &view.node) {
            view.unmet_requirement = Some(unmet);
            view.message = message;
        }
    }
    views
}

/// All nodes, without regard to affinity and topology spread: the same for all pods with the same request.
pub(crate) fn without_affinity(
    snapshot: &ClusterSnapshot<'_>,
    decided: &DecidedCluster<'_>,
    task: &Task,
) -> Vec<NodeView> {
    let mut views: Vec<NodeView> = (decided.cluster.nodes.iter())
        .map(|node| view(snapshot, decided, task, node))
        .collect();
    views.sort_by(|left, right| left.node.cmp(&right.node));
    views
}

/// The affinity term or spread constraint that keeps a pod from a node with room.
pub(crate) fn affinity(
    decided: &DecidedCluster<'_>,
    task: &Task,
    node: &str,
) -> Option<(UnmetRequirement, String)> {
    let refusal = decided.session.affinity_refusal(&task.name, node)?;
    if let Some(port) = used_port(decided, task, node) {
        return Some((
            UnmetRequirement::Admission,
            format!("has host port {port} in use"),
        ));
    }
    let unmet = match refusal {
        AffinityRefusal::AffinityNotSatisfied { .. } => UnmetRequirement::Affinity,
        AffinityRefusal::AntiAffinityViolated { .. } => UnmetRequirement::AntiAffinity,
        AffinityRefusal::ExistingAntiAffinity { .. } => UnmetRequirement::ExistingAntiAffinity,
        AffinityRefusal::TopologySkewExceeded { .. } => UnmetRequirement::TopologySpread,
    };
    Some((unmet, formatting::affinity(&refusal)))
}

/// The host port that keeps the pod away, because a pod with a place there has it.
fn used_port<'t>(decided: &DecidedCluster<'_>, task: &'t Task, node: &str) -> Option<&'t str> {
    let terms = task.apart.iter();
    let mut ports = terms.filter_map(|term| Some((term, objects::pod_affinity::port(term)?)));
    let found = ports.find(|(term, _)| {
        let mut tasks = decided.cluster.jobs.iter().flat_map(|job| &job.tasks);
        tasks.any(|other| {
            if other.name == task.name || !term.are_like(&other.labels) {
                return false;
            }
            let outcome = decided
                .outcomes
                .get(other.name.as_str())
                .filter(|outcome| outcome.status.is_active());
            let placement = outcome.and_then(|outcome| outcome.placement.as_ref());
            placement.is_some_and(|placement| placement.node == node)
        })
    });
    found.map(|(_, port)| port)
}

fn view(
    snapshot: &ClusterSnapshot<'_>,
    decided: &DecidedCluster<'_>,
    task: &Task,
    node: &Node,
) -> NodeView {
    let idle = decided
        .session
        .node_state(&node.name)
        .map(|(idle, _)| idle)
        .unwrap_or_default();
    let found = unmet(snapshot, decided, task, node);
    let (unmet_requirement, message) = match found {
        None => (None, "has room".to_owned()),
        Some((unmet, message)) => (Some(unmet), message),
    };
    NodeView {
        node: node.name.clone(),
        unmet_requirement,
        message,
        idle_cards: idle.cards.max(0),
        cards: holders(decided, node),
    }
}

fn holders(decided: &DecidedCluster<'_>, node: &Node) -> Vec<CardView> {
    let view = |card: String, total: Bytes, holders: &[Holder]| {
        let held: Bytes = holders.iter().map(|holder| holder.bytes).sum();
        let mut holders: Vec<HolderView> = (holders.iter())
            .map(|holder| HolderView {
                pod: holder.name.clone(),
                bytes: holder.bytes.0,
            })
            .collect();
        holders.sort_by(|left, right| {
            (Reverse(left.bytes), &left.pod).cmp(&(Reverse(right.bytes), &right.pod))
        });
        CardView {
            card,
            free_bytes: total.minus(held).0,
            total_bytes: total.0,
            holders,
        }
    };
    let mut cards: Vec<CardView> = (decided.shared(&node.name).into_iter())
        .map(|(card, holders)| {
            let total = node.size_of(&card);
            view(card, total, holders)
        })
        .collect();
    cards.sort_by(|left, right| left.card.cmp(&right.card));
    let whole = decided.whole(&node.name).iter().map(|(pod, count)| {
        let holder = Holder {
            name: (*pod).to_owned(),
            bytes: node.card_memory,
        };
        view(format!("{count} whole"), node.card_memory, &[holder])
    });
    cards.extend(whole);
    cards
}

fn unmet(
    snapshot: &ClusterSnapshot<'_>,
    decided: &DecidedCluster<'_>,
    task: &Task,
    node: &Node,
) -> Option<(UnmetRequirement, String)> {
    let (namespace, name) = task.name.split_once('/').unwrap_or_default();
    let pod = snapshot.inventory.find("Pod", namespace, name);
    let object = snapshot.inventory.find("Node", "", &node.name);
    if let Some(why) = pod
        .zip(object)
        .and_then(|(pod, node)| snapshot.refused(pod, node))
    {
        return Some((UnmetRequirement::Admission, why));
    }
    if let Some(pinned) = task
        .pinned
        .as_ref()
        .filter(|pinned| pinned.node != node.name)
    {
        let message = format!("is not node {}, on which the pod runs", pinned.node);
        return Some((UnmetRequirement::Admission, message));
    }
    let marks = [TAKES_SHARES, TAKES_CARDS];
    let mut wished = task.node_affinity.iter().map(|(label, _)| label);
    if wished.any(|label| marks.contains(&label.as_str()) && !node.labels.contains_key(label)) {
        return Some((UnmetRequirement::Admission, silent(snapshot, &node.name)));
    }
    if let Some(why) = kinds::refused(task, node).or_else(|| config_maps::refused(task)) {
        return Some((UnmetRequirement::Admission, why));
    }
    let (idle, _) = decided.session.node_state(&node.name)?;
    let cards = task.cards_on(&node.name);
    let wants_cards = cards.is_some();
    let is_partitions = matches!(cards, TaskGpuRequest::Partitions(_));
    match node.mig {
        None if is_partitions => {
            return Some((
                UnmetRequirement::Kind,
                "MIG job cannot be scheduled on non-MIG node".to_owned(),
            ));
        }
        Some(MigStrategy::Mixed) if wants_cards && !is_partitions => {
            return Some((
                UnmetRequirement::Kind,
                "non MIG jobs cant run on a node with MigStrategy='mixed'".to_owned(),
            ));
        }
        Some(MigStrategy::Single) if wants_cards && !matches!(cards, TaskGpuRequest::Whole(_)) => {
            return Some((
                UnmetRequirement::Kind,
                "only whole gpu jobs can run on a node with MigStrategy='single'".to_owned(),
            ));
        }
        None | Some(_) => {}
    }
    if idle.pods < 1 {
        return Some((
            UnmetRequirement::Pods,
            format!("runs its maximum of {} pods", node.pods),
        ));
    }
    if idle.cpu < task.cpu_millis {
        let message = format!(
            "asked for {}m CPU; {}m free of {}m",
            task.cpu_millis,
            idle.cpu.max(0),
            node.cpu_millis
        );
        return Some((UnmetRequirement::Cpu, message));
    }
    if idle.memory < task.memory {
        let bytes = |amount: i64| Bytes(u64::try_from(amount).unwrap_or(0));
        let message = format!(
            "asked for {} of memory; {} free of {}",
            bytes(task.memory),
            bytes(idle.memory),
            bytes(node.memory)
        );
        return Some((UnmetRequirement::Memory, message));
    }
    let has_claims = task.all_claims().next().is_some();
    let refusal = has_claims.then(|| decided.session.claim_refusal(&task.name, &node.name));
    if let Some(refusal) = refusal.flatten() {
        return Some((UnmetRequirement::Claims, formatting::claim(&refusal)));
    }
    cards::unmet(decided, task, node, idle.cards).or_else(|| {
        let unmet_requirement = decided.session.lacks_pod_slot(&task.name, &node.name);
        unmet_requirement.then(|| {
            let message = format!(
                "has {} of {} places for pods free; a share on a GPU that nobody shares yet takes two, as in KAI",
                idle.pods, node.pods
            );
            (UnmetRequirement::Pods, message)
        })
    })
    .or_else(|| {
        let fits = decided.session.fits_zones(&task.name, &node.name);
        (!fits).then(|| (UnmetRequirement::Numa, zones(decided, node)))
    })
}

/// Why the node's kubelet would reject the pod, with what is free in its zones.
fn zones(decided: &DecidedCluster<'_>, node: &Node) -> String {
    let policy = match node.numa {
        NumaPolicy::SingleNode => "single-numa-node",
        NumaPolicy::Restricted => "restricted",
        NumaPolicy::BestEffort => "best-effort",
        NumaPolicy::None => "none",
    };
    let free = decided.session.available_in_zones(&node.name);
    let zones: Vec<String> = node
        .zones
        .iter()
        .zip(free)
        .map(|(zone, free): (&NumaZone, ZoneAmounts)| {
            let memory = Bytes(u64::try_from(free.memory).unwrap_or(0));
            let (cards, cpu) = (free.cards.max(0), free.cpu.max(0));
            format!("{} has {cards} GPUs, {cpu}m CPU and {memory}", zone.name)
        })
        .collect();
    format!(
        "its Topology Manager ({policy}) could not align the pod with NUMA zones; free: {}",
        zones.join(", ")
    )
}

/// Why the node's cards can't be granted, with the last heartbeat.
fn silent(snapshot: &ClusterSnapshot<'_>, node: &str) -> String {
    let why = "has no agent that answers, so its GPUs cannot be granted";
    let heartbeat = snapshot.inventory.find("GpuNode", "", node);
    let heartbeat = heartbeat.and_then(|heartbeat| {
        heartbeat
            .json()
            .pointer("/status/lastHeartbeatTime")?
            .as_str()
    });
    match heartbeat {
        Some(at) => format!("{why}; the last heartbeat was at {at}"),
        None => why.to_owned(),
    }
}
