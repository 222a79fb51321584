//! Known causes of differences, so that a report can count by cause.
//!
//! A cause is never a list of clusters, because other seeds give other clusters. Where the policy differs from KAI on
//! purpose, it can be told to behave as KAI does. If it then decides as KAI does, that is the cause. KAI itself reports
//! what it takes back. The other causes follow from the cluster and from KAI's decisions.

use std::collections::BTreeSet;

use anyhow::Result;
use apportion_policy::cluster::KaiBehavior;
use serde_json::{Value, json};

use super::oracle::{CycleDecision, KaiOracle};
use super::pod_outcomes::{PodOutcomes, PolicyVariant, decided_in, difference, jobs, tasks};

/// Why the two schedulers differ in a cycle. The first seven are behaviours that the policy can copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DifferenceCause {
    /// KAI makes evictions that the lookahead rejects.
    InVain,
    /// KAI takes back what it decided in the same cycle.
    TakesBack,
    /// A part of a job requires a wider domain than the common domain of the nodes in a search.
    AboveCommonDomain,
    /// A pod that is being evicted has affinity terms, or other pods have anti-affinity to it.
    LeavingAffinity,
    /// A gang starts without pod sets that it does not need.
    NeedsAllSets,
    /// An evicted elastic job gets all pods back for which there is room.
    ReturnsOnce,
    /// A pod that is moved, and then moved back in the same cycle, is moved all the same.
    KeepsMove,
    /// Several of the above.
    Several,
    /// A pod requests an exact multiple of a GPU's memory.
    MemoryMultiple,
    /// KAI evicts a pod more than once.
    EvictsTwice,
    /// KAI reserves an unshared GPU for a share.
    ReservedForShare,
    /// KAI adds shares with rounding errors.
    Rounds,
    /// KAI moves pods of a job that is as entitled, and does not keep their new places for them.
    LosesMoved,
    /// KAI serves a job by a step that leaves a gang with too few pods.
    BreaksGang,
}

/// The behaviours of KAI that the policy can copy.
const WAYS: [DifferenceCause; 7] = [
    DifferenceCause::InVain,
    DifferenceCause::TakesBack,
    DifferenceCause::AboveCommonDomain,
    DifferenceCause::LeavingAffinity,
    DifferenceCause::NeedsAllSets,
    DifferenceCause::ReturnsOnce,
    DifferenceCause::KeepsMove,
];

impl DifferenceCause {
    /// The name in the report.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::InVain => "KAI evicts in vain; the same without the look-ahead",
            Self::TakesBack => "KAI takes back what it decided in the same cycle",
            Self::AboveCommonDomain => {
                "required level above the nodes' common domain: KAI finds no room there"
            }
            Self::NeedsAllSets => {
                "KAI ends a gang that has as many sub groups as it must, because another lacks pods"
            }
            Self::ReturnsOnce => {
                "KAI evicts pods above the minimum of an elastic job although there is room for them"
            }
            Self::KeepsMove => "KAI moves a pod although it moves it back in the same cycle",
            Self::Several => "several of these causes at once",
            Self::MemoryMultiple => {
                "gpu-memory is an exact multiple of a GPU: KAI binds it to a GPU that is too small"
            }
            Self::EvictsTwice => {
                "KAI evicts a pod twice in the cycle: it moved it first, or counts it twice"
            }
            Self::ReservedForShare => {
                "KAI keeps a GPU for a share that waits, and counts that GPU wrongly in the rest of the cycle"
            }
            Self::Rounds => {
                "KAI adds shares with rounding errors: what fills a quota or limit exactly is above it"
            }
            Self::LosesMoved => {
                "KAI moves pods of a job that is as entitled, and gives their new places away"
            }
            Self::BreaksGang => {
                "KAI leaves a gang with too few pods on the way; no step of Apportion does"
            }
            Self::LeavingAffinity => {
                "KAI still counts a pod that is evicted now as present, for the affinity of others and its own"
            }
        }
    }

    /// Why KAI decides differently in a cycle, if that is known. KAI is asked for it if it has to be.
    pub(crate) fn asked(
        oracle: &mut KaiOracle,
        start: &Value,
        kais: &CycleDecision,
        ours: &PodOutcomes,
    ) -> Result<Option<Self>> {
        let known = Self::of(start, kais)?;
        if known.is_some() || !has_fractions(start) {
            return Ok(known);
        }
        let rounded = oracle.decided(&with_slack(start))?;
        let rounds = difference(&rounded.tasks, ours).is_none();
        Ok(rounds.then_some(Self::Rounds))
    }

    /// Why KAI decides differently in a cycle, if its decisions say it.
    fn of(start: &Value, kais: &CycleDecision) -> Result<Option<Self>> {
        let tasks = &kais.tasks;
        for causes in combinations() {
            if difference(tasks, &decided_in(start, &ways(&causes))?).is_none() {
                return Ok(Some(match causes.as_slice() {
                    [one] => *one,
                    _ => Self::Several,
                }));
            }
        }
        if !kais.taken_back.is_empty() {
            return Ok(Some(Self::TakesBack));
        }
        if !kais.evicted_twice.is_empty() {
            return Ok(Some(Self::EvictsTwice));
        }
        Ok(Self::mistake(start).or_else(|| {
            let reserves = reserves_for_share(start, tasks);
            reserves.then_some(Self::ReservedForShare)
        }))
    }

    /// The mistake of KAI that a cluster triggers. The jobs that KAI serves by it are not entitled.
    pub(crate) fn mistake(cluster: &Value) -> Option<Self> {
        has_memory_multiple(cluster).then_some(Self::MemoryMultiple)
    }
}

/// Each behaviour alone, then several together.
fn combinations() -> Vec<Vec<DifferenceCause>> {
    let all = 1..1_usize << WAYS.len();
    let mut sets: Vec<Vec<DifferenceCause>> = all
        .map(|set| {
            let ways = WAYS.into_iter().enumerate();
            let taken = ways.filter(|(place, _)| set & (1 << place) != 0);
            taken.map(|(_, way)| way).collect()
        })
        .collect();
    sets.sort_by_key(Vec::len);
    sets
}

/// The policy with these behaviours of KAI.
fn ways(causes: &[DifferenceCause]) -> PolicyVariant {
    let kais = [
        (DifferenceCause::TakesBack, KaiBehavior::TakesBack),
        (
            DifferenceCause::AboveCommonDomain,
            KaiBehavior::NarrowsDomains,
        ),
        (DifferenceCause::LeavingAffinity, KaiBehavior::CountsLeaving),
        (DifferenceCause::NeedsAllSets, KaiBehavior::NeedsAllSets),
        (DifferenceCause::ReturnsOnce, KaiBehavior::ReturnsOnce),
        (DifferenceCause::KeepsMove, KaiBehavior::KeepsMove),
    ];
    let as_kai: BTreeSet<KaiBehavior> = kais
        .into_iter()
        .filter(|(cause, _)| causes.contains(cause))
        .map(|(_, way)| way)
        .collect();
    PolicyVariant {
        without_look_ahead: causes.contains(&DifferenceCause::InVain),
        as_kai,
    }
}

/// Whether KAI reserves a GPU for a share that was not shared before.
fn reserves_for_share(start: &Value, kais: &PodOutcomes) -> bool {
    let groups = jobs(start)
        .flat_map(tasks)
        .filter_map(|task| task["gpu_groups"].as_array());
    let known: BTreeSet<&str> = groups.flatten().filter_map(Value::as_str).collect();
    let mut reserved = kais.values().filter(|one| one.status == "Pipelined");
    reserved.any(|one| {
        one.gpu_groups
            .iter()
            .any(|group| !known.contains(group.as_str()))
    })
}

fn has_fractions(cluster: &Value) -> bool {
    let mut tasks = jobs(cluster).flat_map(tasks);
    tasks.any(|task| task["gpu"]["kind"] == "fraction")
}

/// The cluster with so much more GPU in each quota and limit that rounding errors don't matter.
fn with_slack(cluster: &Value) -> Value {
    const SLACK: f64 = 1e-3;
    let mut cluster = cluster.clone();
    let queues = cluster["queues"].as_array_mut().into_iter().flatten();
    for queue in queues {
        for amount in ["deserved_gpus", "max_gpus"] {
            if let Some(gpus) = queue[amount].as_f64().filter(|gpus| *gpus > 0.0) {
                queue[amount] = json!(gpus + SLACK);
            }
        }
    }
    cluster
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

#[cfg(test)]
mod tests {
    use super::super::pod_outcomes::decided;
    use super::*;

    #[test]
    fn only_an_exact_multiple_above_one_gpu_is_a_memory_multiple() {
        let of = |mib: u64| {
            DifferenceCause::mistake(&json!({
                "nodes": [{"gpu_memory_mib": 1000}],
                "jobs": [{"tasks": [{"gpu": {"kind": "memory", "gpu_memory_mib": mib}}]}],
            }))
        };
        assert_eq!(of(2000), Some(DifferenceCause::MemoryMultiple));
        assert_eq!([of(1000), of(1500)], [None, None]);
    }

    #[test]
    fn only_quotas_and_limits_that_bound_something_get_slack() {
        let with = with_slack(&json!({"queues": [
            {"name": "a", "deserved_gpus": 1.0, "max_gpus": -1.0},
            {"name": "b", "deserved_gpus": 0.0, "max_gpus": 3.0},
        ]}));
        assert_eq!(
            with["queues"],
            json!([
                {"name": "a", "deserved_gpus": 1.001, "max_gpus": -1.0},
                {"name": "b", "deserved_gpus": 0.0, "max_gpus": 3.001},
            ])
        );
    }

    /// A job that requires one zone, in a group that requires one rack: its nodes are narrower than what it requires.
    fn nested() -> Value {
        let level = |level: &str| json!({"topology": "tree", "required_level": level});
        json!({
            "mode": "cycle", "actions": [], "expected": {},
            "topologies": [{"name": "tree", "levels": ["zone", "rack"]}],
            "nodes": [
                {"name": "n0", "gpus_allocatable": 1, "labels": {"zone": "z", "rack": "a"}},
                {"name": "n1", "gpus_allocatable": 1, "labels": {"zone": "z", "rack": "b"}},
            ],
            "queues": [{"name": "q", "deserved_gpus": 2}],
            "jobs": [{
                "name": "job", "queue": "q", "priority": 50, "preemptible": true,
                "subgroups": {
                    "topology": level("rack"),
                    "pod_sets": [{"name": "default", "min_available": 1, "topology": level("zone")}],
                },
                "tasks": [{"id": "job-0", "state": "Pending", "gpu": {"kind": "whole", "gpus": 1}}],
            }],
        })
    }

    #[test]
    fn a_cause_is_what_makes_the_policy_decide_as_kai() {
        let cluster = nested();
        let narrowed = ways(&[DifferenceCause::AboveCommonDomain]);
        let kais = CycleDecision {
            tasks: decided_in(&cluster, &narrowed).unwrap(),
            taken_back: Vec::new(),
            evicted_twice: Vec::new(),
        };
        assert!(difference(&kais.tasks, &decided(&cluster).unwrap()).is_some());
        let cause = DifferenceCause::of(&cluster, &kais).unwrap();
        assert_eq!(cause, Some(DifferenceCause::AboveCommonDomain));
    }

    #[test]
    fn one_way_is_tried_before_several() {
        let sizes: Vec<usize> = combinations().iter().map(Vec::len).collect();
        assert_eq!(sizes.len(), 127);
        assert_eq!(sizes[..8], [1, 1, 1, 1, 1, 1, 1, 2]);
        assert!(sizes.is_sorted());
    }
}
