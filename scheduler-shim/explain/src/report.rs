//! Everything that was decided, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;

use apportion_policy::Decision;
use apportion_policy::cluster::TaskGpuRequest;
use serde::Serialize;

use super::decided_cluster::{ActionDecision, DecidedCluster};
use super::formatting::{self, line};
use super::pod_explanation::PodExplanation;
use super::queue_view::{self, QueueView};
use super::waiting::{self, WaitingPod};
use apportion_model::object_warnings::ObjectWarnings;
use apportion_model::shards::action_name;
use apportion_model::snapshot::ClusterSnapshot;

/// The decisions of one run, with the warnings about objects.
#[derive(Clone, Debug, Serialize)]
pub struct DecisionReport {
    /// What was decided, in order.
    pub decisions: Vec<ReportedDecision>,
    /// The pods that go on waiting.
    pub waiting: Vec<WaitingPod>,
    queues: Vec<QueueView>,
    /// What could not be read of the objects.
    pub warnings: ObjectWarnings,
    /// How many objects of which kinds were ignored.
    pub ignored: BTreeMap<String, usize>,
    /// How many pods belong to other schedulers.
    pub other_schedulers_pods: usize,
    /// The pod that was asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<PodExplanation>,
}

/// What is done with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DecisionKind {
    /// The pod has to end, so that another can start.
    Evict,
    /// It is bound.
    Bind,
    /// A place is kept for it until others have left.
    Reserve,
}

/// One decision about a pod, with its reason.
#[derive(Clone, Debug, Serialize)]
pub struct ReportedDecision {
    /// What was decided for the pod.
    pub decision: DecisionKind,
    /// Namespace and name of the pod.
    pub pod: String,
    /// The pod's group.
    pub job: String,
    /// The node it goes to or leaves.
    pub node: String,
    /// Its cards. Cards without a name are numbered on their node.
    pub cards: Vec<String>,
    /// The devices that its claims get: driver, pool and device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// What it requests of GPUs.
    pub asks: String,
    /// KAI's name for the action that decided it.
    pub action: &'static str,
}

/// Reports what was decided.
pub fn report(
    snapshot: &ClusterSnapshot<'_>,
    decided: &DecidedCluster<'_>,
    warnings: ObjectWarnings,
) -> DecisionReport {
    DecisionReport {
        decisions: decided
            .made
            .iter()
            .filter_map(|made| reported_decision(decided, made))
            .collect(),
        waiting: waiting::all(snapshot, decided),
        queues: queue_view::all(decided),
        warnings,
        ignored: snapshot.inventory.ignored.clone(),
        other_schedulers_pods: snapshot.foreign,
        explanation: None,
    }
}

fn reported_decision(
    decided: &DecidedCluster<'_>,
    made: &ActionDecision,
) -> Option<ReportedDecision> {
    let (deed, job, pod, placement) = match &made.decision {
        Decision::Evict { job, task } => (DecisionKind::Evict, job, task, None),
        Decision::Bind {
            job,
            task,
            placement,
        } => (DecisionKind::Bind, job, task, Some(placement)),
        Decision::Reserve {
            job,
            task,
            placement,
            ..
        } => (DecisionKind::Reserve, job, task, Some(placement)),
    };
    let (_, task) = decided.task(pod)?;
    let node = match placement {
        Some(placement) => placement.node.clone(),
        None => task.node.clone()?,
    };
    let cards = match (&task.cards, placement) {
        (TaskGpuRequest::Shared { .. } | TaskGpuRequest::Whole(_), Some(placement)) => placement
            .cards
            .iter()
            .map(|card| decided.card_name(&node, card))
            .collect(),
        (TaskGpuRequest::Shared { .. }, None) => task.on.clone(),
        (TaskGpuRequest::Whole(_), None)
        | (TaskGpuRequest::None | TaskGpuRequest::Partitions(_), _) => Vec::new(),
    };
    let claims = placement.iter().flat_map(|placement| &placement.claims);
    let devices = claims.flat_map(|claim| claim.devices.clone()).collect();
    Some(ReportedDecision {
        devices,
        decision: deed,
        pod: pod.clone(),
        job: job.clone(),
        node,
        cards,
        asks: formatting::cards(task),
        action: action_name(made.action),
    })
}

impl fmt::Display for ReportedDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cards = match self.cards.as_slice() {
            [] if !self.devices.is_empty() => {
                format!("devices {}: {}", self.devices.join(" "), self.asks)
            }
            [] => self.asks.clone(),
            cards => format!("cards {}: {}", cards.join(" "), self.asks),
        };
        let (pod, node) = (&self.pod, &self.node);
        match self.decision {
            DecisionKind::Evict => write!(f, "evict {pod} from {node} ({})", self.action),
            DecisionKind::Bind => write!(f, "bind {pod} to {node} {cards}"),
            DecisionKind::Reserve => {
                write!(f, "reserve {node} for {pod} {cards} ({})", self.action)
            }
        }
    }
}

impl fmt::Display for DecisionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(explanation) = &self.explanation {
            return explanation.fmt(f);
        }
        for decided in &self.decisions {
            line(f, format_args!("{decided}"))?;
        }
        for waiting in &self.waiting {
            line(
                f,
                format_args!("{} waits because {}", waiting.pod, waiting.message),
            )?;
        }
        if self.decisions.is_empty() && self.waiting.is_empty() {
            line(f, format_args!("nothing to decide"))?;
        }
        Ok(())
    }
}
