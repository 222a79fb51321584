//! Shrinks a cluster as long as it still shows the difference.

use anyhow::Result;
use serde_json::Value;

use super::cause::DifferenceCause;
use super::oracle::KaiOracle;
use super::pod_outcomes::{decided, difference, jobs};
use super::scheduling_run::carry_on;
use super::unserved::unserved;
use super::{ClusterFinding, FindingKind, expected};

/// The lists of a cluster from which entries are removed.
const LISTS: [&str; 3] = ["jobs", "nodes", "queues"];

/// The smallest cluster that was found, with KAI's decisions for it.
pub(crate) fn shrink(oracle: &mut KaiOracle, finding: &ClusterFinding) -> Result<Value> {
    let mut smallest = finding.cluster.clone();
    loop {
        let Some(smaller) = one_step(oracle, &smallest, &finding.what)? else {
            break;
        };
        smallest = smaller;
    }
    if let FindingKind::Cycle(..) = finding.what {
        smallest["expected"] = expected(&oracle.decided(&smallest)?.tasks);
    }
    Ok(smallest)
}

/// The cluster with one entry less, if it still shows the difference.
fn one_step(oracle: &mut KaiOracle, cluster: &Value, what: &FindingKind) -> Result<Option<Value>> {
    for list in LISTS {
        let count = cluster[list].as_array().map_or(0, Vec::len);
        for entry in (0..count).rev() {
            let mut smaller = cluster.clone();
            if let Some(entries) = smaller[list].as_array_mut() {
                entries.remove(entry);
            }
            if is_whole(&smaller) && shows(oracle, &smaller, what)? {
                return Ok(Some(smaller));
            }
        }
    }
    Ok(None)
}

/// Whether everything that is referenced exists.
fn is_whole(cluster: &Value) -> bool {
    let names = |list: &str| -> Vec<Value> {
        let entries = cluster[list].as_array().into_iter().flatten();
        entries.map(|entry| entry["name"].clone()).collect()
    };
    let (nodes, queues) = (names("nodes"), names("queues"));
    let entries = cluster["queues"].as_array().into_iter().flatten();
    let mut parents = entries.map(|queue| &queue["parent"]);
    let mut pods = jobs(cluster).flat_map(super::pod_outcomes::tasks);
    !nodes.is_empty()
        && parents.all(|parent| parent.is_null() || queues.contains(parent))
        && jobs(cluster).all(|job| queues.contains(&job["queue"]))
        && pods.all(|task| task["node"].is_null() || nodes.contains(&task["node"]))
}

fn shows(oracle: &mut KaiOracle, cluster: &Value, what: &FindingKind) -> Result<bool> {
    match what {
        FindingKind::Cycle(_, kind, _, cause) => {
            let kais = oracle.decided(cluster)?;
            let ours = decided(cluster)?;
            let differs = difference(&kais.tasks, &ours);
            let again = oracle.decided(cluster)?;
            let is_same = differs == Some(*kind) && difference(&kais.tasks, &again.tasks).is_none();
            Ok(is_same && DifferenceCause::asked(oracle, cluster, &kais, &ours)? == *cause)
        }
        FindingKind::End(end) => {
            let kais = carry_on(cluster, |at| Ok(oracle.decided(at)?.tasks))?;
            let ours = carry_on(cluster, decided)?;
            Ok(super::EndComparison::of(&ours, &kais) == *end)
        }
        FindingKind::Unserved(_, mistake) => {
            let kais = carry_on(cluster, |at| Ok(oracle.decided(at)?.tasks))?;
            let ours = carry_on(cluster, decided)?;
            let waiting = unserved(oracle, &ours, &kais)?;
            let jobs = match mistake {
                Some(DifferenceCause::LosesMoved) => waiting.for_moved,
                Some(DifferenceCause::Rounds) => waiting.for_rounding_errors,
                Some(DifferenceCause::BreaksGang) => waiting.for_broken,
                Some(DifferenceCause::AboveCommonDomain) => waiting.for_overlooked,
                _ => waiting.starved,
            };
            Ok(!jobs.is_empty())
        }
    }
}
