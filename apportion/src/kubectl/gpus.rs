//! `gpus`: every GPU of the cluster, as the agents report it, and which agents report none.

use std::time::{SystemTime, UNIX_EPOCH};

use apportion::output;
use apportion::table::{CellAlignment, TableColumn, lay_out};
use apportion_abi::Bytes;
use apportion_crds::{CardHealth, GpuCard, GpuNode};
use apportion_exit::CommandFailure;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use serde::Serialize;

use crate::api::ClusterConnection;

/// A GPU and the node that has it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeGpu {
    pub(crate) node: String,
    /// Whether the node's agent gives shares: `True`, `False`, or `Unknown` if it is silent.
    pub(crate) ready: String,
    #[serde(flatten)]
    pub(crate) card: GpuCard,
}

const COLUMNS: &[TableColumn<NodeGpu>] = &[
    TableColumn {
        title: "NODE",
        cell: |gpu| gpu.node.clone(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "GPU",
        cell: |gpu| gpu.card.index.to_string(),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "MODEL",
        cell: |gpu| gpu.card.model.clone(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "ALLOCATABLE",
        cell: |gpu| memory(gpu.card.allocatable_bytes),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "ALLOCATED",
        cell: |gpu| memory(gpu.card.allocated_bytes),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "FREE",
        cell: |gpu| memory(gpu.card.free_bytes),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "USED",
        cell: |gpu| memory(gpu.card.used_bytes),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "UNMANAGED",
        cell: |gpu| memory(gpu.card.unmanaged_bytes),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "SHARES",
        cell: |gpu| gpu.card.holders.len().to_string(),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "HEALTH",
        cell: |gpu| health(gpu.card.health).to_owned(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "UUID",
        cell: |gpu| gpu.card.uuid.clone(),
        side: CellAlignment::Left,
    },
];

pub(crate) async fn show(cluster: &ClusterConnection, as_json: bool) -> Result<(), CommandFailure> {
    let nodes = nodes(cluster).await?;
    let gpus = of(&nodes);
    if as_json {
        output::json(&gpus)
    } else {
        output::all(&text(&nodes, &gpus))
    }
}

/// The agents' reports, sorted by node name.
pub(crate) async fn nodes(cluster: &ClusterConnection) -> Result<Vec<GpuNode>, CommandFailure> {
    let mut nodes: Vec<GpuNode> = cluster.all("gpunodes").await?;
    nodes.sort_by_key(ResourceExt::name_any);
    Ok(nodes)
}

/// The GPUs of the nodes.
pub(crate) fn of(nodes: &[GpuNode]) -> Vec<NodeGpu> {
    nodes
        .iter()
        .flat_map(|node| {
            let (name, ready) = (
                node.name_any(),
                ready(node).map(|ready| ready.status.clone()),
            );
            let cards = node.status.clone().unwrap_or_default().cards;
            cards.into_iter().map(move |card| NodeGpu {
                node: name.clone(),
                ready: ready.clone().unwrap_or_else(|| "Unknown".to_owned()),
                card,
            })
        })
        .collect()
}

/// A table, followed by a sentence for each node that gives no shares.
pub(crate) fn text(nodes: &[GpuNode], gpus: &[NodeGpu]) -> String {
    let table = match gpus {
        [] => "no GPUs: no agent has reported one\n".to_owned(),
        gpus => lay_out(COLUMNS, gpus),
    };
    let silent = nodes.iter().filter_map(trouble);
    silent.fold(table, |text, line| format!("{text}{line}\n"))
}

/// Why a node gives no shares.
pub(crate) fn trouble(node: &GpuNode) -> Option<String> {
    let name = node.name_any();
    let heartbeat = node
        .status
        .as_ref()
        .and_then(|status| status.last_heartbeat_time.as_ref());
    let heartbeat = heartbeat.map_or_else(String::new, |time| format!("; heard {} ago", age(time)));
    match ready(node) {
        Some(ready) if ready.status == "True" => None,
        Some(ready) => Some(format!(
            "node {name} gives no shares: {}: {}{heartbeat}",
            ready.reason, ready.message
        )),
        None => Some(format!(
            "node {name} gives no shares: its agent has not reported yet"
        )),
    }
}

fn ready(node: &GpuNode) -> Option<&Condition> {
    let conditions = node.status.as_ref().map(|status| &status.conditions);
    let mut conditions = conditions.into_iter().flatten();
    conditions.find(|condition| condition.type_ == "Ready")
}

/// Memory in the format of all our tables. A negative amount counts as zero.
pub(crate) fn memory(bytes: i64) -> String {
    Bytes(u64::try_from(bytes).unwrap_or_default()).to_string()
}

/// What a holder is guaranteed. Its agent says it only where it is less than the limit.
pub(crate) fn guaranteed(guaranteed: Option<i64>, limit: i64) -> i64 {
    guaranteed.unwrap_or(limit)
}

fn health(health: CardHealth) -> &'static str {
    match health {
        CardHealth::Healthy => "healthy",
        CardHealth::Unhealthy => "unhealthy",
        CardHealth::Lost => "lost",
        CardHealth::Unknown => "unknown",
    }
}

/// The age of a time in one unit, as kubectl prints it.
pub(crate) fn age(time: &Time) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    in_one_unit(now.saturating_sub(time.0.as_second()).max(0))
}

fn in_one_unit(seconds: i64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::in_one_unit;

    #[test]
    fn an_age_has_one_unit() {
        let ages = [0, 119, 120, 7199, 7200, 172_799, 172_800].map(in_one_unit);
        assert_eq!(ages, ["0s", "119s", "2m", "119m", "2h", "47h", "2d"]);
    }
}
