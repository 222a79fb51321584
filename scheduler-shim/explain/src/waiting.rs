//! Why a pod waits: the first reason that would still hold if all later ones were gone.

use std::borrow::Cow;
use std::collections::BTreeMap;

use apportion_policy::amounts::{ResourceAmounts, ResourceKind};
use apportion_policy::cluster::{Job, Task, TaskStatus};
use apportion_policy::share::QueueShare;
use apportion_policy::{HeldBackJob, QueueBound, QueueDemand, queue_shortfall};
use serde::Serialize;

use super::decided_cluster::DecidedCluster;
use super::formatting;
use super::unmet_requirement::UnmetRequirement;
use super::unschedulable::{self, NodeView};
use apportion_model::snapshot::ClusterSnapshot;

mod gang;
mod gang_conflicts;

use gang::WaitingGang;

/// The kinds of reasons, in KAI's words where KAI has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum WaitReason {
    /// The pod or its group is invalid.
    Invalid,
    /// It would run without its share of a GPU.
    NoSlot,
    /// It has scheduling gates.
    Gated,
    /// Its queue is missing, can't be used, or has queues below it.
    QueueDoesNotExist,
    /// Pods of its gang are missing.
    NotReady,
    /// Its queue, or one above, has reached its limit or its burst limit.
    OverLimit,
    /// It can't be evicted, and its queue has no quota left for such pods.
    NonPreemptibleOverQuota,
    /// No node has room.
    Unschedulable,
}

/// A pod that waits.
#[derive(Clone, Debug, Serialize)]
pub struct WaitingPod {
    /// Namespace and name of the pod.
    pub pod: String,
    /// The pod's group.
    pub job: Option<String>,
    /// The group's queue.
    pub queue: Option<String>,
    /// Why it waits, as a value.
    pub reason: WaitReason,
    /// Why it waits, as a sentence with numbers.
    pub message: String,
}

/// All pods that wait, by name.
pub fn all(snapshot: &ClusterSnapshot<'_>, decided: &DecidedCluster<'_>) -> Vec<WaitingPod> {
    let unseen = |(pod, why): (&String, &String), reason| WaitingPod {
        pod: pod.clone(),
        job: None,
        queue: None,
        reason,
        message: why.clone(),
    };
    let strays = snapshot.strays.iter();
    let slotless = snapshot.slotless.iter();
    let mut waiting: Vec<WaitingPod> = (strays.map(|stray| unseen(stray, WaitReason::Invalid)))
        .chain(slotless.map(|one| unseen(one, WaitReason::NoSlot)))
        .collect();
    let mut inquiry = WaitDiagnosis {
        snapshot,
        decided,
        views: BTreeMap::new(),
        held_back: decided.session.held_back(),
    };
    for job in &decided.cluster.jobs {
        let tasks: Vec<&Task> = job
            .tasks
            .iter()
            .filter(|task| {
                matches!(
                    decided.status(task),
                    TaskStatus::Pending | TaskStatus::Gated
                )
            })
            .collect();
        if tasks.is_empty() {
            continue;
        }
        let together = WaitingGang::of(decided, job);
        for task in tasks {
            let (reason, message) = inquiry.why(job, task, &together);
            waiting.push(WaitingPod {
                pod: task.name.clone(),
                job: Some(job.name.clone()),
                queue: Some(job.queue.clone()),
                reason,
                message,
            });
        }
    }
    waiting.sort_by(|left, right| left.pod.cmp(&right.pod));
    waiting
}

/// Finds the reasons of many pods.
struct WaitDiagnosis<'a, 'c> {
    snapshot: &'a ClusterSnapshot<'a>,
    decided: &'a DecidedCluster<'c>,
    /// The nodes as pods with the same request see them, without regard to affinity.
    views: BTreeMap<String, Vec<NodeView>>,
    /// The jobs for which evictions would be in vain.
    held_back: Vec<HeldBackJob>,
}

impl WaitDiagnosis<'_, '_> {
    fn why(&mut self, job: &Job, task: &Task, together: &WaitingGang<'_>) -> (WaitReason, String) {
        if task.status == TaskStatus::Gated && task.pinned.is_some() {
            let message =
                "its node's agent cannot resume it now, and is asked again soon".to_owned();
            return (WaitReason::Gated, message);
        }
        if task.status == TaskStatus::Gated {
            return (WaitReason::Gated, "it has scheduling gates".to_owned());
        }
        let queue = match self.queue(job) {
            Ok(queue) => queue,
            Err(message) => return (WaitReason::QueueDoesNotExist, message),
        };
        if let Some(sets) = together.strange(task) {
            let message = format!("it belongs to none of the subgroups of its pod group: {sets}");
            return (WaitReason::Invalid, message);
        }
        if let Some(message) = &together.unready {
            return (WaitReason::NotReady, message.clone());
        }
        let next = together.with(task);
        let (_, largest) = self.decided.card_sizes();
        let more: ResourceAmounts = next.iter().map(|task| task.amounts(largest)).sum();
        let bursts = next.iter().map(|task| task.burst(largest));
        let demand = QueueDemand {
            amounts: more,
            limits: more[ResourceKind::Gpu] + bursts.sum::<f64>(),
            is_preemptible: job.is_preemptible,
        };
        if let Some(found) = over(self.decided, queue, demand) {
            return found;
        }
        let message = match too_large(self.decided, next.len(), more) {
            Some(message) => message,
            None => {
                let decided = self.decided;
                let mut message = no_capacity(
                    decided,
                    self.views(task),
                    |node: &str| unschedulable::affinity(decided, task, node),
                    &next,
                );
                if let Some(held_back) = self.held_back.iter().find(|held| held.job == job.name) {
                    message.push_str(&in_vain(held_back));
                }
                message
            }
        };
        (WaitReason::Unschedulable, message)
    }

    /// The job's queue, or why it runs no pods.
    fn queue(&self, job: &Job) -> Result<usize, String> {
        let (name, queues) = (&job.queue, &self.decided.queues);
        let queue = queues
            .find(name)
            .ok_or_else(|| match self.snapshot.unusable.get(name) {
                Some(why) => format!("Queue '{name}' cannot be used: {why}"),
                None => format!("Queue '{name}' does not exist"),
            })?;
        let below = queues.children(queue).iter();
        let below: Vec<&str> = below.map(|&one| queues.get(one).uid.as_str()).collect();
        if below.is_empty() {
            return Ok(queue);
        }
        Err(format!(
            "Queue '{name}' has child queues ({}); pods run only in queues without children",
            below.join(", ")
        ))
    }

    fn views(&mut self, task: &Task) -> &[NodeView] {
        let Task {
            cards,
            limit,
            cpu_millis,
            memory,
            node_affinity,
            is_guaranteed,
            containers,
            pinned,
            ..
        } = task;
        let claims: Vec<&String> = task.all_claims().collect();
        let key = format!(
            "{cards:?} {limit:?} {cpu_millis} {memory} {node_affinity:?} {claims:?} {is_guaranteed} {containers:?} {pinned:?}"
        );
        let (snapshot, decided) = (self.snapshot, self.decided);
        let views = self.views.entry(key);
        views.or_insert_with(|| unschedulable::without_affinity(snapshot, decided, task))
    }
}

/// The queue whose limit, burst limit or quota `more` would exceed, up to the top.
fn over(
    decided: &DecidedCluster<'_>,
    queue: usize,
    more: QueueDemand,
) -> Option<(WaitReason, String)> {
    let queues = decided.queues.upward(queue);
    let queues: Vec<&QueueShare> = queues.map(|queue| decided.queues.get(queue)).collect();
    let shortfall = queue_shortfall(queues.into_iter(), more)?;
    let reason = match shortfall.bound {
        QueueBound::Limit | QueueBound::BurstLimit => WaitReason::OverLimit,
        QueueBound::Quota => WaitReason::NonPreemptibleOverQuota,
    };
    Some((reason, formatting::queue(&shortfall)))
}

/// What the cluster has too little of for a gang, even if it was empty.
fn too_large(
    decided: &DecidedCluster<'_>,
    together: usize,
    more: ResourceAmounts,
) -> Option<String> {
    let total = decided.total();
    let mut involved = more.involved().filter(|_| together > 1);
    let short = involved.find(|&resource| more[resource] > total[resource])?;
    let amount = |amounts: ResourceAmounts| formatting::amount(short, amounts[short]);
    Some(format!(
        "the {together} pods that must start together ask for {}; all nodes together have {}",
        amount(more),
        amount(total)
    ))
}

/// Why nobody is evicted for a job.
fn in_vain(held_back: &HeldBackJob) -> String {
    const SHOWN: usize = 3;
    if held_back.by.is_empty() {
        return "; no pod is evicted for it, because it would not get the room".to_owned();
    }
    let more = held_back.by.len().saturating_sub(SHOWN);
    let first: Vec<&str> = held_back
        .by
        .iter()
        .map(String::as_str)
        .take(SHOWN)
        .collect();
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "; no pod is evicted for it, because the room would go to {}{more} first",
        first.join(", ")
    )
}

/// What the nodes lack, and which of them came closest. Those with room may lack `affinity`.
fn no_capacity(
    decided: &DecidedCluster<'_>,
    views: &[NodeView],
    affinity: impl Fn(&str) -> Option<(UnmetRequirement, String)>,
    together: &[&Task],
) -> String {
    if views.is_empty() {
        return "there are no nodes".to_owned();
    }
    let mut lacking: Vec<(UnmetRequirement, &NodeView, Cow<'_, str>)> = Vec::new();
    let mut open: Vec<&NodeView> = Vec::new();
    for view in views {
        let found = match view.unmet_requirement {
            Some(unmet) => Some((unmet, Cow::Borrowed(view.message.as_str()))),
            None => affinity(&view.node).map(|(unmet, message)| (unmet, Cow::Owned(message))),
        };
        match found {
            Some((unmet, message)) => lacking.push((unmet, view, message)),
            // For a pod that starts alone, one such node is enough.
            None if together.len() == 1 => return capacity_for_one(decided, view, together, &open),
            None => open.push(view),
        }
    }
    if let Some(first) = open.first() {
        return capacity_for_one(decided, first, together, &open);
    }
    let mut counts: BTreeMap<UnmetRequirement, usize> = BTreeMap::new();
    for (unmet, ..) in &lacking {
        *counts.entry(*unmet).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|(unmet, count)| format!("{count} node(s) {}", unmet.message()))
        .collect();
    let closest = lacking.iter().rev().max_by_key(|(unmet, view, _)| {
        (*unmet, view.cards.iter().map(|card| card.free_bytes).max())
    });
    let closest =
        closest.map(|(_, view, message)| format!("; closest is {}: {message}", view.node));
    format!(
        "no nodes with enough resources were found: {}{}",
        counts.join(", "),
        closest.unwrap_or_default()
    )
}

/// The message if a node has room for one pod, which waits all the same.
fn capacity_for_one(
    decided: &DecidedCluster<'_>,
    first: &NodeView,
    together: &[&Task],
    open: &[&NodeView],
) -> String {
    let node = &first.node;
    let many = together.len();
    if many == 1 {
        return format!("{node} has room for it, but topology or the order of jobs make it wait");
    }
    let message = format!(
        "the {many} pods that must start together do not fit; one alone would fit on {node}"
    );
    match gang_conflicts::too_few_domains(decided, together, open) {
        Some(why) => format!("{message}: {why}"),
        None => message,
    }
}
