//! `top`: the GPUs of the cluster, and every share of them.
//!
//! The objects contain a share's limit, but not its usage, because that changes all the time. The metrics have the
//! usage, and so does `apportion top` on the share's node.

use apportion::output;
use apportion::table::{CellAlignment, TableColumn, lay_out};
use apportion_exit::CommandFailure;
use serde::Serialize;

use crate::api::ClusterConnection;
use crate::gpus::{self, NodeGpu, guaranteed, memory};

/// A share and its GPU.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TopShare {
    /// `None` for a program outside a pod.
    namespace: Option<String>,
    pod: Option<String>,
    container: String,
    node: String,
    gpu: i64,
    uuid: String,
    /// What is always there; the limit, except where the share may burst.
    guaranteed_bytes: i64,
    limit_bytes: i64,
    /// Whether its processes sleep with their GPU memory in the host's memory.
    suspended: bool,
    /// Whether they sleep because they did not use the GPU.
    idle: bool,
    /// What is guaranteed, as a part of the GPU's allocatable memory, in percent.
    percent: i64,
}

#[derive(Debug, Serialize)]
struct TopReport<'a> {
    gpus: &'a [NodeGpu],
    shares: &'a [TopShare],
}

const GUARANTEED: TableColumn<TopShare> = TableColumn {
    title: "GUARANTEED",
    cell: |share| memory(share.guaranteed_bytes),
    side: CellAlignment::Right,
};

const STATE: TableColumn<TopShare> = TableColumn {
    title: "STATE",
    cell: |share| {
        let state = match (share.idle, share.suspended) {
            (true, _) => "idle",
            (false, true) => "suspended",
            (false, false) => "running",
        };
        state.to_owned()
    },
    side: CellAlignment::Left,
};

/// The columns of a table of shares. What is guaranteed is shown if it differs from any limit, and who sleeps if anybody
/// does.
fn columns(shares: &[TopShare]) -> Vec<TableColumn<TopShare>> {
    let mut columns = Vec::from(COLUMNS);
    let mut all = shares.iter();
    let limit = columns.iter().position(|column| column.title == "LIMIT");
    if let Some(limit) = limit.filter(|_| all.any(|of| of.guaranteed_bytes < of.limit_bytes)) {
        columns.insert(limit, GUARANTEED);
    }
    if shares.iter().any(|share| share.suspended) {
        columns.push(STATE);
    }
    columns
}

const COLUMNS: [TableColumn<TopShare>; 7] = [
    TableColumn {
        title: "NAMESPACE",
        cell: |share| share.namespace.clone().unwrap_or_else(|| "-".to_owned()),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "POD",
        cell: |share| share.pod.clone().unwrap_or_else(|| "-".to_owned()),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "CONTAINER",
        cell: |share| match share.container.as_str() {
            "" => "-".to_owned(),
            name => name.to_owned(),
        },
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "NODE",
        cell: |share| share.node.clone(),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "GPU",
        cell: |share| share.gpu.to_string(),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "LIMIT",
        cell: |share| memory(share.limit_bytes),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "OF GPU",
        cell: |share| format!("{}%", share.percent),
        side: CellAlignment::Right,
    },
];

/// Lists GPUs and shares.
pub(crate) async fn show(cluster: &ClusterConnection, as_json: bool) -> Result<(), CommandFailure> {
    let nodes = gpus::nodes(cluster).await?;
    let gpus = gpus::of(&nodes);
    let shares: Vec<TopShare> = gpus.iter().flat_map(shares).collect();
    if as_json {
        return output::json(&TopReport {
            gpus: &gpus,
            shares: &shares,
        });
    }
    let shares = match shares.as_slice() {
        [] => "no shares\n".to_owned(),
        shares => lay_out(&columns(shares), shares),
    };
    output::all(&format!("{}\n{shares}", gpus::text(&nodes, &gpus)))
}

fn shares(gpu: &NodeGpu) -> impl Iterator<Item = TopShare> + '_ {
    gpu.card.holders.iter().map(|holder| TopShare {
        namespace: holder.namespace.clone(),
        pod: holder.pod.clone(),
        container: holder.container.clone(),
        node: gpu.node.clone(),
        gpu: gpu.card.index,
        uuid: gpu.card.uuid.clone(),
        guaranteed_bytes: guaranteed(holder.guaranteed_bytes, holder.limit_bytes),
        limit_bytes: holder.limit_bytes,
        suspended: holder.suspended,
        idle: holder.idle,
        percent: percent(
            guaranteed(holder.guaranteed_bytes, holder.limit_bytes),
            gpu.card.allocatable_bytes,
        ),
    })
}

/// Rounded to the nearest whole number; 0 for a GPU without allocatable memory.
fn percent(part: i64, whole: i64) -> i64 {
    let doubled = i128::from(part) * 200 + i128::from(whole);
    let rounded = doubled.checked_div(i128::from(whole) * 2);
    rounded
        .and_then(|part| i64::try_from(part).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{TopShare, columns, lay_out, percent};

    #[test]
    fn a_guarantee_is_shown_only_beside_limits_above_it_and_a_state_only_if_somebody_sleeps() {
        let share = |guaranteed_bytes, suspended| TopShare {
            namespace: None,
            pod: None,
            container: "c".to_owned(),
            node: "n".to_owned(),
            gpu: 0,
            uuid: "GPU-1".to_owned(),
            guaranteed_bytes,
            limit_bytes: 2,
            suspended,
            idle: false,
            percent: 1,
        };
        let titles = |shares: &[TopShare]| {
            let all = columns(shares).into_iter().map(|column| column.title);
            all.collect::<Vec<_>>()
        };
        let fixed = titles(&[share(2, false)]);
        assert!(!fixed.contains(&"GUARANTEED") && !fixed.contains(&"STATE"));
        assert!(titles(&[share(2, false), share(1, false)]).contains(&"GUARANTEED"));
        let idle = TopShare {
            idle: true,
            ..share(1, true)
        };
        let shares = [share(1, true), share(1, false), idle];
        assert_eq!(titles(&shares).last(), Some(&"STATE"));
        let table = lay_out(&columns(&shares), &shares);
        for state in ["suspended", "running", "idle"] {
            assert!(table.contains(state), "{table}");
        }
    }

    #[test]
    fn a_part_is_rounded_to_the_nearest_percent() {
        let parts = [(1, 2), (1, 3), (2, 3), (0, 5), (5, 5), (1, 0)]
            .map(|(part, whole)| percent(part, whole));
        assert_eq!(parts, [50, 33, 67, 0, 100, 0]);
    }
}
