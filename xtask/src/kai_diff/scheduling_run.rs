//! Runs a cluster with one scheduler alone, until nothing changes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::Value;

use super::generate::GPU_MEMORY;
use super::pod_outcomes::{PodOutcomes, carried_on, jobs, running, tasks};

/// The maximum number of cycles.
pub(crate) const CYCLES: usize = 10;

/// The result of one scheduler.
pub(crate) struct SchedulingRun {
    /// Each cycle: the cluster at its start, and the decisions.
    pub(crate) cycles: Vec<(Value, PodOutcomes)>,
    /// The cluster at the end.
    pub(crate) end: Value,
    /// Whether the last cycle changed nothing.
    pub(crate) rests: bool,
}

/// How Apportion's end compares with KAI's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EndComparison {
    /// The same pods run.
    Same,
    /// Other pods run, but each queue has as many GPUs.
    SameForQueues,
    /// As many GPUs are in use, but by other queues.
    OtherQueues,
    /// More GPUs are in use with Apportion.
    More,
    /// Fewer GPUs are in use with Apportion.
    Fewer,
    /// With KAI the cluster never settles.
    KaiRestless,
    /// With Apportion the cluster never settles.
    Restless,
}

impl EndComparison {
    /// All variants, as columns of the report.
    pub(crate) const ALL: [(Self, &'static str); 7] = [
        (Self::Same, "same pods"),
        (Self::SameForQueues, "same for queues"),
        (Self::OtherQueues, "other queues"),
        (Self::More, "more GPUs"),
        (Self::Fewer, "fewer GPUs"),
        (Self::KaiRestless, "KAI never rests"),
        (Self::Restless, "we never rest"),
    ];

    /// The name in the report.
    pub(crate) fn words(self) -> &'static str {
        let found = Self::ALL.iter().find(|(end, _)| *end == self);
        found.map_or("", |(_, words)| words)
    }

    pub(crate) fn of(ours: &SchedulingRun, kais: &SchedulingRun) -> Self {
        let same = running(&ours.end) == running(&kais.end);
        match (ours.rests, kais.rests) {
            (false, _) => return Self::Restless,
            (true, false) => return Self::KaiRestless,
            (true, true) if same => return Self::Same,
            (true, true) => {}
        }
        let (our_gpus, kais_gpus) = (gpus_by_queue(&ours.end), gpus_by_queue(&kais.end));
        if our_gpus == kais_gpus {
            return Self::SameForQueues;
        }
        let total = |gpus: &BTreeMap<String, u64>| gpus.values().sum::<u64>();
        match total(&our_gpus).cmp(&total(&kais_gpus)) {
            std::cmp::Ordering::Equal => Self::OtherQueues,
            std::cmp::Ordering::Greater => Self::More,
            std::cmp::Ordering::Less => Self::Fewer,
        }
    }
}

/// Runs a cluster with the decisions of `decide`.
pub(crate) fn carry_on(
    cluster: &Value,
    mut decide: impl FnMut(&Value) -> Result<PodOutcomes>,
) -> Result<SchedulingRun> {
    let mut cycles: Vec<(Value, PodOutcomes)> = Vec::new();
    let mut at = cluster.clone();
    for _ in 0..CYCLES {
        let outcomes = decide(&at)?;
        let next = carried_on(&at, &outcomes);
        let rests = running(&next) == running(&at) && next["jobs"] == at["jobs"];
        cycles.push((std::mem::replace(&mut at, next), outcomes));
        if rests {
            return Ok(SchedulingRun {
                cycles,
                end: at,
                rests,
            });
        }
    }
    Ok(SchedulingRun {
        cycles,
        end: at,
        rests: false,
    })
}

/// The GPUs that the pods of each queue hold, in thousandths.
fn gpus_by_queue(cluster: &Value) -> BTreeMap<String, u64> {
    let mut gpus = BTreeMap::new();
    let runs: BTreeSet<&str> = running(cluster);
    for job in jobs(cluster) {
        let queue = job["queue"].as_str().unwrap_or_default();
        let held = tasks(job).filter(|task| runs.contains(super::pod_outcomes::id(task)));
        let held: u64 = held.map(thousandths).sum();
        if held > 0 {
            *gpus.entry(queue.to_owned()).or_default() += held;
        }
    }
    gpus
}

/// The GPUs of a pod, in thousandths.
pub(crate) fn thousandths(task: &Value) -> u64 {
    let gpu = &task["gpu"];
    let devices = gpu["num_devices"].as_u64().unwrap_or(1);
    match gpu["kind"].as_str() {
        Some("fraction") => {
            devices * (gpu["portion"].as_f64().unwrap_or(0.0) * 1000.0).round() as u64
        }
        Some("memory") => {
            let mib = gpu["gpu_memory_mib"].as_u64().unwrap_or(0);
            devices * mib * 1000 / GPU_MEMORY as u64
        }
        _ => gpu["gpus"].as_u64().unwrap_or(0) * 1000,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::pod_outcomes::PodOutcome;
    use super::*;

    /// Two queues with a job each. The pods in `bound` are bound at once; if it `rests`, nothing changes after that.
    fn course(bound: &[&str], rests: bool) -> SchedulingRun {
        let task =
            |id: &str| json!({"id": id, "state": "Pending", "gpu": {"kind": "whole", "gpus": 1}});
        let cluster = json!({"jobs": [
            {"name": "a", "queue": "q0", "tasks": [task("a-0"), task("a-1")]},
            {"name": "b", "queue": "q1", "tasks": [task("b-0")]},
        ]});
        carry_on(&cluster, |at| {
            let runs = running(at);
            let all = bound.iter().map(|id| {
                let status = if runs.contains(id) && rests {
                    "Running"
                } else {
                    "Binding"
                };
                let status = if runs.contains(id) && !rests {
                    "Releasing"
                } else {
                    status
                };
                let status = status.to_owned();
                (
                    (*id).to_owned(),
                    PodOutcome {
                        status,
                        ..PodOutcome::default()
                    },
                )
            });
            Ok(all.collect())
        })
        .unwrap()
    }

    #[test]
    fn ends_are_compared_by_pods_then_queues_then_gpus() {
        let kais = course(&["a-0"], true);
        let of = |bound: &[&str]| EndComparison::of(&course(bound, true), &kais);
        assert_eq!(of(&["a-0"]), EndComparison::Same);
        assert_eq!(of(&["a-1"]), EndComparison::SameForQueues);
        assert_eq!(of(&["b-0"]), EndComparison::OtherQueues);
        assert_eq!(of(&["a-0", "b-0"]), EndComparison::More);
        assert_eq!(of(&[]), EndComparison::Fewer);
    }

    #[test]
    fn a_cluster_that_goes_on_and_on_never_rests() {
        let (rests, restless) = (course(&["a-0"], true), course(&["a-0"], false));
        assert_eq!(restless.cycles.len(), CYCLES);
        assert_eq!(
            EndComparison::of(&rests, &restless),
            EndComparison::KaiRestless
        );
        assert_eq!(
            EndComparison::of(&restless, &rests),
            EndComparison::Restless
        );
    }
}
