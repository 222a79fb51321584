//! The outcomes of a cluster's pods after a cycle, and the cluster at the start of the next cycle.
//!
//! A cluster is kept as JSON in the format of docs/development/kai-cases.md, because two schedulers read it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use apportion_policy::cluster::KaiBehavior;
use apportion_policy::{Action, Session, plan};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::scenarios::{NOW, cluster_of};

/// The outcome of a pod.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub(crate) struct PodOutcome {
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) node: Option<String>,
    #[serde(default)]
    pub(crate) gpu_groups: Vec<String>,
    /// Whether its reserved place is kept for it. KAI keeps none.
    #[serde(default)]
    pub(crate) is_nominated: bool,
}

/// The outcomes of all pods, by name.
pub(crate) type PodOutcomes = BTreeMap<String, PodOutcome>;

/// How two schedulers differ about one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DecisionDifference {
    /// A pod has another node.
    Node,
    /// A pod has another status.
    Fate,
}

impl PodOutcome {
    /// Whether the pod has or leaves a place, so that its node means something.
    pub(crate) fn is_placed(&self) -> bool {
        self.is_to_be_somewhere() || self.status == "Releasing"
    }

    /// Whether the pod has or will have a place. The node of an evicted pod is no decision: KAI may name the node that
    /// it was to move to before its eviction.
    fn is_to_be_somewhere(&self) -> bool {
        matches!(self.status.as_str(), "Binding" | "Running" | "Pipelined")
    }
}

/// The behaviours that the policy copies from KAI.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicyVariant {
    /// Evict without the lookahead.
    pub(crate) without_look_ahead: bool,
    pub(crate) as_kai: BTreeSet<KaiBehavior>,
}

pub(crate) fn decided(cluster: &Value) -> Result<PodOutcomes> {
    decided_in(cluster, &PolicyVariant::default())
}

/// What Apportion would decide with behaviours of KAI.
pub(crate) fn decided_in(cluster: &Value, ways: &PolicyVariant) -> Result<PodOutcomes> {
    let mut cluster = cluster_of(cluster)?;
    cluster.settings.as_kai.clone_from(&ways.as_kai);
    let session = if ways.without_look_ahead {
        let mut session = Session::open(NOW, &cluster);
        for action in Action::ALL {
            session.run(action);
        }
        session
    } else {
        plan(NOW, &cluster)
    };
    let nominated = session.nominated_pods();
    let all = session.outcomes().into_iter().map(|(task, (outcome, _))| {
        let (node, gpu_groups) = match outcome.placement {
            Some(placement) => (Some(placement.node), placement.cards),
            None => (None, Vec::new()),
        };
        let status = format!("{:?}", outcome.status);
        let pod_outcome = PodOutcome {
            status,
            node,
            gpu_groups,
            is_nominated: nominated.contains(task),
        };
        (task.to_owned(), pod_outcome)
    });
    Ok(all.collect())
}

/// How two outcomes differ. The choice between equal GPUs is not compared.
pub(crate) fn difference(left: &PodOutcomes, right: &PodOutcomes) -> Option<DecisionDifference> {
    left.iter()
        .filter_map(|(task, one): (&String, &PodOutcome)| {
            let other = right.get(task).cloned().unwrap_or_default();
            if one.status != other.status {
                return Some(DecisionDifference::Fate);
            }
            let is_elsewhere = one.is_to_be_somewhere() && one.node != other.node;
            is_elsewhere.then_some(DecisionDifference::Node)
        })
        .max()
}

/// The cluster after the decisions: bound pods run, evicted and pipelined pods wait, some of them nominated.
pub(crate) fn carried_on(cluster: &Value, outcomes: &PodOutcomes) -> Value {
    let mut after = cluster.clone();
    for task in tasks_mut(&mut after) {
        let Some(pod_outcome) = outcomes.get(id(task)) else {
            continue;
        };
        // Absent as in the first cluster, or a cluster at rest would seem to change.
        if pod_outcome.is_nominated {
            task["nominated"] = json!(true);
        } else if let Some(fields) = task.as_object_mut() {
            fields.remove("nominated");
        }
        match pod_outcome.status.as_str() {
            "Binding" => {
                task["state"] = json!("Running");
                task["node"] = json!(pod_outcome.node);
                task["gpu_groups"] = if has_groups(task) {
                    json!(pod_outcome.gpu_groups)
                } else {
                    json!([])
                };
            }
            "Pipelined" | "Releasing" => {
                task["state"] = json!("Pending");
                task["node"] = Value::Null;
                task["gpu_groups"] = json!([]);
            }
            _ => {}
        }
    }
    after
}

/// Whether a pod shares GPUs, so that the GPU names say with whom.
fn has_groups(task: &Value) -> bool {
    matches!(task["gpu"]["kind"].as_str(), Some("fraction" | "memory"))
}

/// The jobs of a cluster.
pub(crate) fn jobs(cluster: &Value) -> impl Iterator<Item = &Value> {
    cluster["jobs"].as_array().into_iter().flatten()
}

/// The pods of a job.
pub(crate) fn tasks(job: &Value) -> impl Iterator<Item = &Value> {
    job["tasks"].as_array().into_iter().flatten()
}

fn tasks_mut(cluster: &mut Value) -> impl Iterator<Item = &mut Value> {
    let jobs = cluster["jobs"].as_array_mut().into_iter().flatten();
    jobs.flat_map(|job| job["tasks"].as_array_mut().into_iter().flatten())
}

/// The name of a pod.
pub(crate) fn id(task: &Value) -> &str {
    task["id"].as_str().unwrap_or_default()
}

/// The names of the running pods.
pub(crate) fn running(cluster: &Value) -> BTreeSet<&str> {
    let tasks = jobs(cluster).flat_map(tasks);
    tasks
        .filter(|task| task["state"] == "Running")
        .map(id)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(all: &[(&str, &str, Option<&str>)]) -> PodOutcomes {
        all.iter()
            .map(|(task, status, node): &(&str, &str, Option<&str>)| {
                let pod_outcome = PodOutcome {
                    status: (*status).to_owned(),
                    node: node.map(str::to_owned),
                    gpu_groups: Vec::new(),
                    is_nominated: false,
                };
                ((*task).to_owned(), pod_outcome)
            })
            .collect()
    }

    #[test]
    fn another_status_weighs_more_than_another_node() {
        let kais = outcomes(&[("a-0", "Binding", Some("n0")), ("a-1", "Pending", None)]);
        let moved = outcomes(&[("a-0", "Binding", Some("n1")), ("a-1", "Pending", None)]);
        let other = outcomes(&[
            ("a-0", "Binding", Some("n1")),
            ("a-1", "Binding", Some("n0")),
        ]);
        assert_eq!(difference(&kais, &kais), None);
        assert_eq!(difference(&kais, &moved), Some(DecisionDifference::Node));
        assert_eq!(difference(&kais, &other), Some(DecisionDifference::Fate));
    }

    #[test]
    fn the_node_of_a_pod_that_waits_says_nothing() {
        let one = outcomes(&[("a-0", "Pending", Some("n0"))]);
        let other = outcomes(&[("a-0", "Pending", None)]);
        assert_eq!(difference(&one, &other), None);
    }

    #[test]
    fn the_node_that_a_pod_leaves_is_no_decision() {
        let one = outcomes(&[("a-0", "Releasing", Some("n0"))]);
        let other = outcomes(&[("a-0", "Releasing", Some("n1"))]);
        assert_eq!(difference(&one, &other), None);
    }

    #[test]
    fn what_is_bound_runs_and_what_is_evicted_waits() {
        let cluster = json!({"jobs": [{"tasks": [
            {"id": "a-0", "state": "Pending", "gpu": {"kind": "whole"}},
            {"id": "a-1", "state": "Running", "node": "n0", "gpu": {"kind": "whole"}},
            {"id": "a-2", "state": "Running", "node": "n0", "gpu": {"kind": "whole"}},
        ]}]});
        let decided = outcomes(&[
            ("a-0", "Binding", Some("n1")),
            ("a-1", "Releasing", Some("n0")),
            ("a-2", "Running", Some("n0")),
        ]);
        let after = carried_on(&cluster, &decided);
        assert_eq!(running(&after), BTreeSet::from(["a-0", "a-2"]));
        assert_eq!(after["jobs"][0]["tasks"][0]["node"], "n1");
        assert!(after["jobs"][0]["tasks"][1]["node"].is_null());
    }
}
