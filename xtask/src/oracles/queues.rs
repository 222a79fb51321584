//! Queues and amounts in the format of the oracles.

use std::time::Duration;

use anyhow::{Context, Result};
use apportion_policy::amounts::ResourceAmounts;
use apportion_policy::share::{QueueShare, ResourceShare};
use apportion_policy::tree::QueueTree;
use serde_json::Value;

use super::number;

/// An amount of each resource.
pub(super) fn amounts(value: &Value) -> ResourceAmounts {
    ResourceAmounts::new(
        number(&value["cpu"]),
        number(&value["memory"]),
        number(&value["gpu"]),
    )
}

/// A queue with its shares.
pub(super) fn queue(value: &Value) -> QueueShare {
    let share = |name: &str| {
        let share = &value[name];
        let fair = share.get("fair_share").or(share.get("fair_share_before"));
        ResourceShare {
            deserved: number(&share["deserved"]),
            limit: number(&share["limit"]),
            weight: number(&share["over_quota_weight"]),
            fair: fair.map(number).unwrap_or_default(),
            allocated: number(&share["allocated"]),
            non_preemptible: number(&share["allocated_non_preemptible"]),
            request: number(&share["request"]),
            usage: number(&share["usage"]),
        }
    };
    QueueShare {
        uid: value["uid"].as_str().unwrap_or_default().to_owned(),
        parent: None,
        priority: number(&value["priority"]) as i32,
        created: Duration::from_secs(number(&value["created_order"]) as u64),
        shares: [share("cpu"), share("memory"), share("gpu")],
        burst_limit: None,
        burst: 0.0,
    }
}

/// The queues of a case as a tree. A parent that is not in the case is ignored.
pub(super) fn tree(value: &Value) -> Result<QueueTree> {
    let queues = value.as_array().context("a case has queues")?;
    let names: Vec<&str> = queues
        .iter()
        .filter_map(|queue| queue["uid"].as_str())
        .collect();
    let all = queues.iter().map(|value| {
        let parent = value["parent"]
            .as_str()
            .filter(|parent| names.contains(parent));
        (queue(value), parent.map(str::to_owned))
    });
    Ok(QueueTree::from_shares(all))
}

/// The index of a queue in its tree.
pub(super) fn find(tree: &QueueTree, name: &Value) -> Result<usize> {
    let name = name.as_str().context("a queue has a name")?;
    tree.find(name)
        .with_context(|| format!("there is no queue {name}"))
}
