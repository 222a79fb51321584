//! Suspends pods where the policy would evict them, if their queue says so, and resumes them.
//!
//! The policy knows nothing of this. A pod that can be suspended is two jobs for it: one with all that the pod has of its
//! node except the GPU, and one with its share of the GPU only. If the policy evicts the second one, the pod is
//! suspended: its GPU memory moves to the host's memory, and its container goes on. From then on the second job waits like
//! any other, pinned to its GPU, and the pod is resumed when the policy places it. If the policy evicts the first one, for
//! CPU or memory, the pod is evicted.
//!
//! The agents know which pods are suspended, so a new scheduler goes on where the last one was killed.
//!
//! # Decision: only pods that are alone in their group
//! A gang with a pod that sleeps waits for it, and holds its other GPUs for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apportion_policy::cluster::{
    Cluster, Job, PinnedCard, PodSet, StalenessGracePeriod, SubGroupSet, Task, TaskGpuRequest,
    TaskStatus,
};

use super::agents::{AgentAllocation, AgentAllocationState, ShareSuspension};
use super::back_off::BackOff;
use super::event::{AgentRequest, PodEventReason, PodRef, SchedulerEffect};
use super::model::ClusterModel;
use apportion_model::snapshot::ClusterSnapshot;

/// What follows the name of a pod in the name of the task that is its share. No pod's name has these characters.
const SHARE: &str = " (GPU share)";
/// How long an agent may take to undo a suspension that failed, or to complete one that an earlier scheduler asked for.
const UNDONE_WITHIN: Duration = Duration::from_secs(60);
/// How long the agent's status may take to show what it answered.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

/// The name of the task that is the share of a pod.
pub(crate) fn share_of_pod(pod: &str) -> String {
    format!("{pod}{SHARE}")
}

/// The pod whose share a task is, by namespace and name.
pub(crate) fn pod_of_share(task: &str) -> Option<&str> {
    task.strip_suffix(SHARE)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SuspensionGoal {
    Asleep,
    Awake,
}

/// A suspension or a resume that an agent was asked for.
#[derive(Clone, Copy, Debug)]
struct PendingSuspension {
    goal: SuspensionGoal,
    /// It was done, and is believed until then.
    believed_until: Option<Duration>,
}

/// The suspensions and resumes that are under way, by the UIDs of the pods.
#[derive(Debug, Default)]
pub(crate) struct PendingSuspensions {
    moving: BTreeMap<String, PendingSuspension>,
    /// Pods that could not be suspended. They are evicted instead.
    refused: BackOff,
    /// Pods that could not be resumed yet.
    waits: BackOff,
    /// When pods were resumed. Their minimum run time begins anew.
    resumed: BTreeMap<String, Duration>,
    /// Since when pods are being suspended for which an earlier scheduler asked, or whose answer was a failure.
    falling: BTreeMap<String, Duration>,
}

impl PendingSuspensions {
    fn goal(&self, uid: &str) -> Option<SuspensionGoal> {
        self.moving.get(uid).map(|moving| moving.goal)
    }

    fn begin(&mut self, uid: &str, goal: SuspensionGoal) {
        let pending = PendingSuspension {
            goal,
            believed_until: None,
        };
        self.moving.insert(uid.to_owned(), pending);
    }

    fn done(&mut self, now: Duration, uid: &str) {
        if let Some(moving) = self.moving.get_mut(uid) {
            moving.believed_until = Some(now + SHOWN_WITHIN);
        }
    }

    pub(crate) fn gone(&mut self, uid: &str) {
        self.moving.remove(uid);
        self.refused.forget(uid);
        self.waits.forget(uid);
        self.resumed.remove(uid);
        self.falling.remove(uid);
    }

    /// Whether a suspension that nobody waits for may still be under way. One that its agent cannot undo must not hold
    /// the GPU for ever.
    fn may_still_fall_asleep(&self, now: Duration, uid: &str) -> bool {
        let since = self.falling.get(uid).copied().unwrap_or(now);
        now < since + UNDONE_WITHIN
    }

    /// When the next back-off ends.
    pub(crate) fn next(&self, now: Duration) -> Option<Duration> {
        let next = self.refused.next(now).into_iter();
        let undone = self.falling.values().map(|since| *since + UNDONE_WITHIN);
        let undone = undone.filter(|at| now < *at);
        next.chain(self.waits.next(now)).chain(undone).min()
    }
}

/// How far the share of a pod is, for the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShareStage {
    Running,
    /// It is being suspended.
    Releasing,
    /// It sleeps, and waits for its GPU.
    Waiting,
    /// It sleeps, and cannot be resumed now.
    Gated,
    /// It is being resumed.
    Resuming,
}

impl ClusterModel {
    /// Divides each pod that sleeps, and each that can be suspended, into two jobs.
    pub(crate) fn divide_shares(&self, now: Duration, snapshot: &mut ClusterSnapshot<'_>) {
        let has_sleepers = || {
            let mut held = self.agents.all().flat_map(|(_, agent)| &agent.status.held);
            held.any(|held| held.suspension != ShareSuspension::Awake)
        };
        if snapshot.suspending_queues.is_empty() && !has_sleepers() {
            return;
        }
        let mut shares = Vec::new();
        for job in &mut snapshot.cluster.jobs {
            let is_opted_in = snapshot.suspending_queues.contains(&job.queue);
            if let Some((rest, share)) = self.divided(now, job, is_opted_in) {
                *job = Arc::new(rest);
                shares.extend(share.map(Arc::new));
            }
        }
        for share in &shares {
            count_pod_twice(&mut snapshot.cluster, share);
        }
        snapshot.cluster.jobs.extend(shares);
    }

    /// The job without its share, and the share; `None` if it stays whole. The share of a pod that ends asleep holds and
    /// wants nothing.
    fn divided(&self, now: Duration, job: &Job, is_opted_in: bool) -> Option<(Job, Option<Job>)> {
        let [task] = job.tasks.as_slice() else {
            return None;
        };
        let TaskGpuRequest::Shared { devices: 1, .. } = task.cards else {
            return None;
        };
        if task.all_claims().next().is_some() || !task.status.is_active() {
            return None;
        }
        let uid = self.uid(task)?;
        let (node, held) = self.share_on_agent(task, &uid)?;
        let [share] = held.shares.as_slice() else {
            return None;
        };
        if task.status != TaskStatus::Running {
            let is_asleep = held.suspension == ShareSuspension::Asleep;
            return is_asleep.then(|| (without_share(job), None));
        }
        let stage = self.stage(now, &uid, node, held);
        let is_divided = stage != ShareStage::Running
            || (is_opted_in
                && job.is_preemptible
                && held.suspension == ShareSuspension::Awake
                && self.can_be_suspended(now, &uid, node));
        if !is_divided {
            return None;
        }
        let pinned = PinnedCard {
            node: node.to_owned(),
            card: share.card.clone(),
        };
        let mut share = share_job(job, task, stage, pinned);
        let resumed = self.suspensions.resumed.get(&uid).copied();
        share.last_start = share.last_start.max(resumed);
        Some((without_share(job), Some(share)))
    }

    /// The node of a pod with one committed allocation, and the allocation.
    fn share_on_agent<'m>(
        &'m self,
        task: &'m Task,
        uid: &str,
    ) -> Option<(&'m str, &'m AgentAllocation)> {
        let node = task.node.as_deref()?;
        let held = self.agents.of(node)?.status.of_pod(uid)?;
        (held.stage == AgentAllocationState::Allocated).then_some((node, held))
    }

    fn stage(&self, now: Duration, uid: &str, node: &str, held: &AgentAllocation) -> ShareStage {
        let is_here = self.agents.of(node).is_some_and(|agent| agent.is_here);
        let goal = self.suspensions.goal(uid);
        match (held.suspension, goal) {
            (
                ShareSuspension::Awake | ShareSuspension::FallingAsleep,
                Some(SuspensionGoal::Asleep),
            ) => ShareStage::Releasing,
            (ShareSuspension::FallingAsleep, _)
                if self.suspensions.may_still_fall_asleep(now, uid) =>
            {
                ShareStage::Releasing
            }
            (ShareSuspension::Awake | ShareSuspension::FallingAsleep, _) => ShareStage::Running,
            (ShareSuspension::Asleep, Some(SuspensionGoal::Awake)) => ShareStage::Resuming,
            (ShareSuspension::Asleep, _)
                if !is_here || self.suspensions.waits.is_delayed(uid, now) =>
            {
                ShareStage::Gated
            }
            (ShareSuspension::Asleep, _) => ShareStage::Waiting,
        }
    }

    fn can_be_suspended(&self, now: Duration, uid: &str, node: &str) -> bool {
        let agent = self.agents.of(node);
        agent.is_some_and(|agent| agent.is_here && agent.status.can_suspend)
            && !self.suspensions.refused.is_delayed(uid, now)
    }

    /// Whether the share of a pod sleeps for its scheduler, or is about to.
    pub(crate) fn is_suspended(&self, uid: &str) -> bool {
        let mut agents = self.agents.all();
        let mut held = agents
            .find_map(|(_, agent)| agent.status.of_pod(uid))
            .into_iter();
        held.any(|held| held.suspension != ShareSuspension::Awake)
            || self.suspensions.moving.contains_key(uid)
    }

    /// Whether a pod was seen on a node.
    pub(crate) fn has_node(&self, pod: &PodRef) -> bool {
        let read = self.inventory.pod(&pod.namespace, &pod.name);
        read.is_some_and(|read| read.node().is_some())
    }

    /// Asks the agents to suspend these pods.
    pub(crate) fn suspend(&mut self, pods: Vec<PodRef>) -> Vec<SchedulerEffect> {
        self.ask_to_move(pods, SuspensionGoal::Asleep, |id, pod| {
            AgentRequest::Suspend { id, pod }
        })
    }

    /// Asks the agents to resume these pods.
    pub(crate) fn resume(&mut self, pods: Vec<PodRef>) -> Vec<SchedulerEffect> {
        self.ask_to_move(pods, SuspensionGoal::Awake, |id, pod| {
            AgentRequest::Resume { id, pod }
        })
    }

    fn ask_to_move(
        &mut self,
        pods: Vec<PodRef>,
        goal: SuspensionGoal,
        request: fn(String, PodRef) -> AgentRequest,
    ) -> Vec<SchedulerEffect> {
        let mut effects = Vec::new();
        for pod in pods {
            let found = self.agents.of_pod(&pod.uid).into_iter().next();
            if let Some((node, held)) = found {
                self.suspensions.begin(&pod.uid, goal);
                effects.push(request(held.id, pod).to(node));
            }
        }
        effects
    }

    /// Forgets what the agents show by now, and what they should have shown.
    pub(crate) fn forget_shown_suspensions(&mut self, now: Duration) {
        let held = (self.agents.all()).flat_map(|(_, agent)| &agent.status.held);
        let falling = held.filter(|held| held.suspension == ShareSuspension::FallingAsleep);
        let falling: BTreeSet<&String> = falling.filter_map(|held| held.uid.as_ref()).collect();
        let since = &mut self.suspensions.falling;
        since.retain(|uid, _| falling.contains(uid));
        for uid in falling {
            if !since.contains_key(uid) && !self.suspensions.moving.contains_key(uid) {
                since.insert(uid.clone(), now);
            }
        }
        let (agents, pods) = (&self.agents, &self.pods);
        self.suspensions.moving.retain(|uid, moving| {
            let held = agents.of_pod(uid).into_iter().next();
            let is_asleep =
                held.is_some_and(|(_, held)| held.suspension == ShareSuspension::Asleep);
            let is_shown = is_asleep == (moving.goal == SuspensionGoal::Asleep);
            let is_answered = moving.believed_until.is_some();
            let is_believed = moving.believed_until.is_none_or(|until| now < until);
            pods.contains_key(uid) && is_believed && !(is_answered && is_shown)
        });
    }

    pub(crate) fn suspended(&mut self, now: Duration, pod: PodRef) -> Vec<SchedulerEffect> {
        self.suspensions.done(now, &pod.uid);
        self.suspensions.refused.forget(&pod.uid);
        let message = format!(
            "Pod {} was suspended to make room for another workload. Its GPU memory is in the host's memory. It goes on \
             when its GPU has room again",
            pod.full()
        );
        vec![SchedulerEffect::PublishEvent {
            pod,
            reason: PodEventReason::Suspended,
            message,
        }]
    }

    pub(crate) fn not_suspended(
        &mut self,
        now: Duration,
        pod: PodRef,
        why: &str,
    ) -> Vec<SchedulerEffect> {
        self.suspensions.moving.remove(&pod.uid);
        if !self.pods.contains_key(&pod.uid) {
            return Vec::new();
        }
        self.suspensions.refused.failed(&pod.uid, now);
        let message = format!(
            "failed to suspend it to make room for another workload, so it may be evicted: {why}"
        );
        vec![SchedulerEffect::PublishEvent {
            pod,
            reason: PodEventReason::NotSuspended,
            message,
        }]
    }

    pub(crate) fn resumed(&mut self, now: Duration, pod: PodRef) -> Vec<SchedulerEffect> {
        self.suspensions.done(now, &pod.uid);
        self.suspensions.waits.forget(&pod.uid);
        self.suspensions.resumed.insert(pod.uid.clone(), now);
        let message = format!(
            "Pod {} goes on: its GPU memory is on the GPU again",
            pod.full()
        );
        vec![SchedulerEffect::PublishEvent {
            pod,
            reason: PodEventReason::Resumed,
            message,
        }]
    }

    /// It is tried again. Its agent has room for it by its ledger only, or was away.
    pub(crate) fn not_resumed(&mut self, now: Duration, pod: &PodRef) {
        self.suspensions.moving.remove(&pod.uid);
        if self.pods.contains_key(&pod.uid) {
            self.suspensions.waits.failed(&pod.uid, now);
        }
    }
}

/// The job of a pod with all that it has of its node except the GPU.
fn without_share(job: &Job) -> Job {
    let mut rest = job.clone();
    for task in &mut rest.tasks {
        task.cards = TaskGpuRequest::None;
        task.limit = None;
        task.on.clear();
    }
    rest
}

/// The job that is the share of a pod.
fn share_job(job: &Job, task: &Task, stage: ShareStage, pinned: PinnedCard) -> Job {
    let status = match stage {
        ShareStage::Running => TaskStatus::Running,
        ShareStage::Releasing => TaskStatus::Releasing,
        ShareStage::Waiting => TaskStatus::Pending,
        ShareStage::Gated => TaskStatus::Gated,
        ShareStage::Resuming => TaskStatus::Binding,
    };
    let place = status.is_active().then(|| pinned.clone());
    let task = Task {
        name: share_of_pod(&task.name),
        set: task.set.clone(),
        status,
        node: place.as_ref().map(|place| place.node.clone()),
        on: place.map(|place| place.card).into_iter().collect(),
        cards: task.cards.clone(),
        limit: task.limit,
        pinned: Some(pinned),
        ..Task::default()
    };
    let set = PodSet {
        name: task.set.clone(),
        min_available: 1,
        topology: None,
    };
    Job {
        name: share_of_pod(&job.name),
        queue: job.queue.clone(),
        priority: job.priority,
        is_preemptible: job.is_preemptible,
        created: job.created,
        last_start: job.last_start,
        last_eviction: job.last_eviction,
        preemption_delay: job.preemption_delay,
        stale_since: None,
        grace: Some(StalenessGracePeriod::Forever),
        root: SubGroupSet {
            sets: vec![set],
            ..SubGroupSet::default()
        },
        tasks: vec![task],
    }
}

/// A share is a pod for the policy, and it takes no more pods of its node than its pod does.
fn count_pod_twice(cluster: &mut Cluster, share: &Job) {
    let pinned = share.tasks.iter().filter_map(|task| task.pinned.as_ref());
    for pinned in pinned {
        let mut nodes = cluster.nodes.iter_mut();
        if let Some(node) = nodes.find(|node| node.name == pinned.node) {
            node.pods += 1;
        }
    }
}
