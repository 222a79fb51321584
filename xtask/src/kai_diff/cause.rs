//! Differences whose cause is known, so that a report counts them by cause.
//!
//! A cause is never a list of clusters, because other seeds make others. Where the policy differs on purpose, it is asked
//! again without that purpose: if it then decides as KAI does, that is the cause. What KAI takes back it says itself.
//! Mistakes of KAI's are told by what the cluster has.

use anyhow::Result;
use serde_json::Value;

use super::oracle::Decided;
use super::standings::{Standings, Ways, decided_in, difference, id, jobs, tasks};

/// Why the two schedulers differ about a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// KAI evicts what the look-ahead does not.
    InVain,
    /// KAI takes back what it decided in the same cycle.
    TakesBack,
    /// Some pod asks for an exact multiple of a GPU's memory.
    MemoryMultiple,
    /// Some job requires one domain of a level above the nodes' common one.
    AboveCommonDomain,
    /// A pod that has to leave looks for company, or others keep away from it.
    LeavingCompany,
}

impl Cause {
    /// What the report says.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::InVain => "KAI evicts in vain; the same without the look-ahead",
            Self::TakesBack => "KAI takes back what it decided in the same cycle",
            Self::MemoryMultiple => {
                "gpu-memory is an exact multiple of a GPU: KAI binds it to a GPU that is too small"
            }
            Self::AboveCommonDomain => {
                "required level above the nodes' common domain: KAI finds no room there"
            }
            Self::LeavingCompany => {
                "KAI still counts a pod that is evicted now as present, for the affinity of others and its own"
            }
        }
    }

    /// Whether KAI's decision is a mistake, so that those whom it serves by it have no claim.
    pub(crate) const fn is_kais_mistake(self) -> bool {
        match self {
            Self::MemoryMultiple => true,
            Self::InVain | Self::TakesBack | Self::AboveCommonDomain | Self::LeavingCompany => {
                false
            }
        }
    }

    /// Why KAI decides otherwise about a cycle, if it is known.
    pub(crate) fn of(start: &Value, kais: &Decided) -> Result<Option<Self>> {
        let Decided { tasks, taken_back } = kais;
        let ways = |without_look_ahead, takes_back| Ways {
            without_look_ahead,
            takes_back,
        };
        let tried = [
            (ways(true, false), Self::InVain),
            (ways(false, true), Self::TakesBack),
        ];
        for (ways, cause) in tried {
            if difference(tasks, &decided_in(start, ways)?).is_none() {
                return Ok(Some(cause));
            }
        }
        if !taken_back.is_empty() {
            return Ok(Some(Self::TakesBack));
        }
        Ok(Self::of_cluster(start).or_else(|| {
            let moves = moves_company(start, tasks);
            moves.then_some(Self::LeavingCompany)
        }))
    }

    /// The mistake of KAI's that a cluster invites, if any.
    pub(crate) fn of_cluster(cluster: &Value) -> Option<Self> {
        if has_memory_multiple(cluster) {
            return Some(Self::MemoryMultiple);
        }
        requires_above_common(cluster).then_some(Self::AboveCommonDomain)
    }
}

/// Whether KAI evicts or moves a pod that runs and has to do with the company of others.
fn moves_company(start: &Value, kais: &Standings) -> bool {
    let mut pods = jobs(start).flat_map(tasks);
    pods.any(|task| {
        let status = kais.get(id(task)).map(|standing| standing.status.as_str());
        task["state"] == "Running"
            && !task["pod_affinity"].is_null()
            && matches!(status, Some("Releasing" | "Pipelined"))
    })
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster(gpu_memory_mib: u64, required: &str, racks: [&str; 2]) -> Value {
        json!({
            "nodes": [
                {"gpu_memory_mib": 1000, "labels": {"zone": "z", "rack": racks[0]}},
                {"gpu_memory_mib": 1000, "labels": {"zone": "z", "rack": racks[1]}},
            ],
            "topologies": [{"name": "tree", "levels": ["zone", "rack"]}],
            "jobs": [{
                "subgroups": {"topology": {"required_level": required}},
                "tasks": [{"gpu": {"kind": "memory", "gpu_memory_mib": gpu_memory_mib}}],
            }],
        })
    }

    #[test]
    fn only_an_exact_multiple_above_one_gpu_is_a_memory_multiple() {
        let of = |mib| Cause::of_cluster(&cluster(mib, "rack", ["a", "b"]));
        assert_eq!(of(2000), Some(Cause::MemoryMultiple));
        assert_eq!([of(1000), of(1500)], [None, None]);
    }

    #[test]
    fn a_level_is_too_wide_only_where_all_nodes_share_a_narrower_one() {
        let of = |level, racks| Cause::of_cluster(&cluster(500, level, racks));
        assert_eq!(of("zone", ["a", "a"]), Some(Cause::AboveCommonDomain));
        assert_eq!(of("zone", ["a", "b"]), None);
        assert_eq!(of("rack", ["a", "a"]), None);
    }
}
