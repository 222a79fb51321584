//! One round: the policy decides on the cluster, and its decisions become effects.
//!
//! What the policy does not know is checked here, in the order of its decisions: the UUIDs of cards, evictions that
//! were already requested, and pods in back-off.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_groups::ObjectView;
use apportion_policy::cluster::{Cluster, Task, TaskGpuRequest, TaskStatus};
use apportion_policy::{Decision, TaskPlacement, step};

use super::agents::AgentStatus;
use super::card_assignment::CardAssigner;
use super::devices::{self, Deallocation};
use super::event::{PodRef, SchedulerEffect};
use super::model::{ClusterModel, PendingEviction};
use super::pending_binds::PendingBind;
use super::resizes::PlannedResize;
use super::suspensions::pod_of_share;
use apportion_model::cards::{FRACTION, REGULAR};
use apportion_model::occupancy::NodeOccupancy;
use apportion_model::shards::programs::are_stopped;
use apportion_model::volumes;
use apportion_model::{requests, resize};

/// KAI's word for a pod that got MIG partitions, beside those for cards.
const PARTITION: &str = "MigInstance";

/// The decisions of a round, before the model has them.
#[derive(Debug, Default)]
struct RoundPlan {
    units: Vec<Vec<PendingBind>>,
    evictions: Vec<PodRef>,
    /// Pods that are suspended and not evicted.
    suspensions: Vec<PodRef>,
    /// Suspended pods whose GPUs have room.
    resumes: Vec<PodRef>,
    /// Pods with the nodes that are kept for them; `None` if no node is any more.
    nominations: Vec<(String, Option<String>)>,
    resizes: Vec<PlannedResize>,
    deallocations: Vec<Deallocation>,
}

impl ClusterModel {
    /// Decides, and stores the decisions in the model.
    pub(crate) fn decide(&mut self, now: Duration) -> Vec<SchedulerEffect> {
        self.ending.retain(|_, end| end.is_believed(now));
        self.assumed_claims.keep_pending(&self.pending_binds);
        self.forget_shown_suspensions(now);
        let mut effects = self.reconcile_all(now);
        effects.extend(self.heartbeats.readiness_changes(now, &self.agents));
        effects.extend(self.left_behind_claims(now));
        effects.extend(self.check_devices(now));
        let plan = if self.programs.is_some() && are_stopped(&self.inventory) {
            RoundPlan::default()
        } else {
            self.plan(now)
        };
        let starting = plan.units.iter().flatten().map(|start| &start.pod);
        effects.extend(self.found_groups(now, starting));
        self.inventory.drop_cache();
        effects.extend(self.begin_resizes(now, plan.resizes));
        effects.extend(self.resizes.due_writes(now));
        effects.extend(self.deallocate(now, plan.deallocations));
        for unit in plan.units {
            for start in &unit {
                self.assumed_claims.assume(start);
            }
            effects.extend(self.pending_binds.begin(unit));
        }
        self.assumed_claims.note_sent(&effects);
        // A scheduler that takes over knows for whom the evictions are.
        for (pod, node) in plan.nominations {
            let (namespace, name) = pod.split_once('/').unwrap_or_default();
            let pod = self.inventory.find("Pod", namespace, name);
            effects.extend(pod.and_then(|pod| self.nominations.write(now, pod, node)));
        }
        effects.extend(self.suspend(plan.suspensions));
        effects.extend(self.resume(plan.resumes));
        for pod in plan.evictions {
            self.ending.insert(pod.uid.clone(), PendingEviction::Asked);
            effects.push(SchedulerEffect::Evict(pod));
        }
        effects
    }

    fn plan(&self, now: Duration) -> RoundPlan {
        let mut snapshot = self.undivided_cluster(now);
        let resizes = self.plan_resizes(now, &mut snapshot.cluster);
        self.divide_shares(now, &mut snapshot);
        let tasks = by_name(&snapshot.cluster);
        let all: Vec<&Task> = tasks.values().copied().collect();
        let mut assigner = CardAssigner::of(self, &all);
        let mut occupancy = snapshot.occupancy.clone();
        let mut units: BTreeMap<String, Option<Vec<PendingBind>>> = BTreeMap::new();
        let mut plan = RoundPlan {
            resizes,
            deallocations: self.failed_claims(now, &all),
            ..RoundPlan::default()
        };
        let mut nominated: BTreeMap<String, Option<String>> = (tasks.values())
            .filter(|task| task.is_nominated && task.status == TaskStatus::Pending)
            .map(|task| (task.name.clone(), None))
            .collect();
        for decision in step(now, &snapshot.cluster) {
            match decision {
                Decision::Evict { ref task, .. } if let Some(pod) = pod_of_share(task) => {
                    let pod = self.pod(pod).filter(|_| !self.spares_all);
                    plan.suspensions.extend(pod);
                }
                Decision::Evict { task, .. } => {
                    let pod = self.pod(&task);
                    plan.evictions.extend(
                        pod.filter(|pod| !self.spares_all && !self.ending.contains_key(&pod.uid)),
                    );
                }
                Decision::Bind { ref task, .. } if let Some(pod) = pod_of_share(task) => {
                    plan.resumes.extend(self.pod(pod));
                }
                Decision::Bind {
                    job,
                    task,
                    placement,
                } => {
                    nominated.remove(&task);
                    let is_admitted = self.enters(&mut occupancy, &task, &placement.node);
                    let start = tasks
                        .get(task.as_str())
                        .filter(|_| is_admitted)
                        .and_then(|task| self.start(now, &mut assigner, task, &placement));
                    let unit = units.entry(job).or_insert_with(|| Some(Vec::new()));
                    match (unit.as_mut(), start) {
                        (Some(unit), Some(start)) => unit.push(start),
                        // A unit starts only with all of its pods.
                        _ => *unit = None,
                    }
                }
                // A later round decides again, when the place is free.
                Decision::Reserve {
                    task,
                    placement,
                    is_nominated,
                    ..
                } => {
                    // A pod that is moved is deleted. Its replacement has another name.
                    let waits = tasks.get(task.as_str());
                    let waits = waits.is_some_and(|task| task.status == TaskStatus::Pending);
                    if is_nominated && waits {
                        nominated.insert(task, Some(placement.node));
                    }
                }
            }
        }
        let evicted = &plan.evictions;
        plan.suspensions.retain(|pod| !evicted.contains(pod));
        // Without evictions no room becomes free, and none is given up.
        if !self.spares_all {
            plan.nominations = nominated.into_iter().collect();
        }
        plan.units = units.into_values().flatten().collect();
        plan
    }

    /// Whether a node still admits a pod after the earlier decisions of this round. If so, adds it to `occupancy`.
    fn enters(&self, occupancy: &mut NodeOccupancy, pod: &str, node: &str) -> bool {
        let (namespace, name) = pod.split_once('/').unwrap_or_default();
        let read = self.inventory.pod(namespace, name);
        if read.is_none_or(|read| read.holds.is_empty()) {
            return true;
        }
        let pod = self.inventory.find("Pod", namespace, name);
        let Some((pod, node)) = pod.zip(self.inventory.find("Node", "", node)) else {
            return true;
        };
        let claims = &self.inventory.claims;
        let is_admitted = occupancy.refusal(pod, node, claims).is_none();
        if is_admitted {
            occupancy.add(pod, node.name());
        }
        is_admitted
    }

    /// The bind of a pod at its place; `None` during its back-off, while a claim of it is deallocated,
    /// or if its cards or volumes are not available.
    fn start(
        &self,
        now: Duration,
        assigner: &mut CardAssigner,
        task: &Task,
        placement: &TaskPlacement,
    ) -> Option<PendingBind> {
        let pod = self.pod(&task.name)?;
        if self.back_off.is_delayed(&pod.uid, now) || self.deallocating.contains(&pod.uid) {
            return None;
        }
        let nothing = AgentStatus::default();
        let agent = self.agents.of(&placement.node);
        let cards = match agent {
            Some(agent) => assigner.take(&agent.status, task, placement)?,
            None if matches!(task.cards, TaskGpuRequest::Shared { .. }) => return None,
            None => assigner.take(&nothing, &Task::default(), placement)?,
        };
        let received = match task.cards_on(&placement.node) {
            TaskGpuRequest::None => None,
            TaskGpuRequest::Whole(_) => Some(REGULAR),
            TaskGpuRequest::Shared { .. } => Some(FRACTION),
            TaskGpuRequest::Partitions(_) => Some(PARTITION),
        };
        let mut start = PendingBind::new(pod, placement.node.clone(), cards, received);
        start.zones.clone_from(&placement.zones);
        // Parsed apart from the cache: a burst starts thousands, and each is dropped at once.
        let (space, name) = (&start.pod.namespace, &start.pod.name);
        let object = self.inventory.find("Pod", space, name)?.read_apart();
        let object = ObjectView::new(&object);
        start.allocated = resize::request(object).filter(|_| received == Some(FRACTION));
        let node = self.inventory.find("Node", "", &start.node)?;
        start.volumes = volumes::bindings(object, node, &self.inventory).ok()?;
        start.claims = self.claims_for(task, placement, &self.assumed_claims.allocations())?;
        if let Some(read) = self.inventory.pod(space, name) {
            start.terms = self.terms_of(object, read, &start.cards);
            start.idle_after = requests::idle_time(object);
        }
        start.devices = devices::wait_of(&start.claims, now);
        start.joins = self.joins(&start.pod);
        Some(start)
    }

    /// A pod by namespace and name.
    pub(crate) fn pod(&self, name: &str) -> Option<PodRef> {
        let (namespace, name) = name.split_once('/')?;
        let object = self.inventory.find("Pod", namespace, name)?;
        Some(PodRef::of(object))
    }
}

fn by_name(cluster: &Cluster) -> BTreeMap<&str, &Task> {
    let tasks = cluster.jobs.iter().flat_map(|job| &job.tasks);
    tasks.map(|task| (task.name.as_str(), task)).collect()
}
