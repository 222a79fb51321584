//! Differences whose cause is known, so that a report counts them by cause.
//!
//! Each is a rule about the cluster, not a list of clusters: other seeds have the same causes.

use serde_json::Value;

use super::standings::{jobs, tasks};

/// Why the two schedulers may differ about a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// Some pod asks for an exact multiple of a GPU's memory.
    MemoryMultiple,
    /// Some job requires one domain of a level above the nodes' common one.
    AboveCommonDomain,
}

impl Cause {
    /// What the report says.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::MemoryMultiple => {
                "gpu-memory is an exact multiple of a GPU: KAI binds it to a GPU that is too small"
            }
            Self::AboveCommonDomain => {
                "required level above the nodes' common domain: KAI finds no room there"
            }
        }
    }

    /// The cause that a cluster has, if any.
    pub(crate) fn of(cluster: &Value) -> Option<Self> {
        if has_memory_multiple(cluster) {
            return Some(Self::MemoryMultiple);
        }
        requires_above_common(cluster).then_some(Self::AboveCommonDomain)
    }
}

fn has_memory_multiple(cluster: &Value) -> bool {
    let nodes = cluster["nodes"].as_array().into_iter().flatten();
    let sizes: Vec<u64> = nodes
        .filter_map(|node| node["gpu_memory_mib"].as_u64())
        .collect();
    let asks = jobs(cluster)
        .flat_map(tasks)
        .filter(|task| task["gpu"]["kind"] == "memory")
        .filter_map(|task| task["gpu"]["gpu_memory_mib"].as_u64());
    let mut asks = asks;
    asks.any(|ask| sizes.iter().any(|size| ask > *size && ask % size == 0))
}

/// Whether all nodes share a domain of one level, and a job requires a wider one.
fn requires_above_common(cluster: &Value) -> bool {
    let topologies = cluster["topologies"].as_array().into_iter().flatten();
    let mut levels = topologies.flat_map(|topology| topology["levels"].as_array());
    let Some(levels) = levels.next() else {
        return false;
    };
    let is_common = |level: &Value| {
        let nodes = cluster["nodes"].as_array().into_iter().flatten();
        let mut domains: Vec<String> = nodes
            .map(|node| node["labels"][level.as_str().unwrap_or_default()].to_string())
            .collect();
        domains.sort();
        domains.dedup();
        domains.len() == 1
    };
    let common = levels.iter().take_while(|level| is_common(level)).count();
    let wider = &levels[..common.saturating_sub(1)];
    let required: Vec<String> = jobs(cluster)
        .flat_map(|job| required(&job["subgroups"]))
        .collect();
    wider
        .iter()
        .any(|level| required.iter().any(|required| level == required))
}

/// The levels that a group and those below it require.
fn required(group: &Value) -> Vec<String> {
    let own = group["topology"]["required_level"].as_str();
    let mut levels: Vec<String> = own.map(str::to_owned).into_iter().collect();
    for below in ["groups", "pod_sets"] {
        let members = group[below].as_array().into_iter().flatten();
        levels.extend(members.flat_map(required));
    }
    levels
}
