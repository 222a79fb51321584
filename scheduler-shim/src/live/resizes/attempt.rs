//! Whether a resize can be asked for now: what the pod has and wants, the room on its cards, and its queues.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::{Bytes, CardCapacity, CardRequest, Holder, Share, fits};
use apportion_admission::resize::subjects;
use apportion_explain::formatting;
use apportion_policy::Session;
use apportion_policy::cluster::{Cluster, TaskGpuRequest};

use super::{FIRST, NewSize, PendingResize, ResizeRefusal, ResizeStage};
use crate::live::agents::{
    AgentAllocation, AgentAllocationState, AgentCard, AgentStatus, ShareSuspension,
};
use crate::live::card_assignment;
use crate::live::event::{AgentRequest, PodRef, SchedulerEffect};
use crate::live::model::ClusterModel;
use crate::live::reconcile::with_limits;
use apportion_model::cards::{self, CardShare};
use apportion_model::resize::{self, ResizeRequest};

/// What to do about one resize.
#[derive(Debug)]
pub(crate) struct PlannedResize {
    pod: PodRef,
    step: ResizeStep,
}

#[derive(Debug)]
enum ResizeStep {
    /// Ask the node's agent to change this allocation.
    Ask {
        id: String,
        /// What the agent is asked for.
        asked: Vec<CardShare>,
        size: NewSize,
    },
    /// The agent has it already: an earlier scheduler asked, or its answer was lost.
    Accept(NewSize),
    Refuse(ResizeRefusal),
}

impl ClusterModel {
    /// What to do about the resizes that wait. Those that are asked for count in `cluster` from now on, so that nothing
    /// else in this round takes their room.
    pub(crate) fn plan_resizes(&self, now: Duration, cluster: &mut Cluster) -> Vec<PlannedResize> {
        let mut round = ResizeRound {
            model: self,
            now,
            cluster,
            asked: BTreeMap::new(),
        };
        let all = self.resizes.0.values();
        let due = all.filter(|known| known.stage == ResizeStage::Waiting && now >= known.next_try);
        due.filter_map(|known| {
            let pod = known.pod.clone();
            let step = match round.attempt(known) {
                Ok(step) => step?,
                Err(refusal) => ResizeStep::Refuse(refusal),
            };
            Some(PlannedResize { pod, step })
        })
        .collect()
    }

    /// Stores what was planned, and returns its effects.
    pub(crate) fn begin_resizes(
        &mut self,
        now: Duration,
        planned: Vec<PlannedResize>,
    ) -> Vec<SchedulerEffect> {
        let mut effects = Vec::new();
        for PlannedResize { pod, step } in planned {
            let Some(known) = self.resizes.0.get_mut(&pod.uid) else {
                continue;
            };
            match step {
                ResizeStep::Ask { id, asked, size } => {
                    let (node, shares) = (size.node.clone(), asked);
                    known.stage = ResizeStage::Asked(size);
                    effects.push(AgentRequest::Resize { id, pod, shares }.to(node));
                }
                ResizeStep::Accept(size) => effects.extend(known.accept(size)),
                ResizeStep::Refuse(refusal) => {
                    known.next_try = now + FIRST;
                    effects.extend(known.refuse(now, refusal));
                }
            }
        }
        effects
    }
}

/// The resizes of one round of decisions.
struct ResizeRound<'m> {
    model: &'m ClusterModel,
    now: Duration,
    cluster: &'m mut Cluster,
    /// What was asked for in this round, by UID.
    asked: BTreeMap<String, Vec<CardShare>>,
}

/// The request that a pod has now.
struct DesiredSize {
    request: String,
    cards: TaskGpuRequest,
    /// Up to what it may burst, if that is more.
    limit: Option<Share>,
    /// The limit that its share was given with.
    limit_before: Option<Share>,
}

/// A running pod with its agent's word for it.
struct ResizingPod<'m> {
    node: &'m str,
    status: &'m AgentStatus,
    held: &'m AgentAllocation,
}

impl ResizeRound<'_> {
    /// The next step of a resize; `None` if there is nothing to do now.
    fn attempt(&mut self, known: &PendingResize) -> Result<Option<ResizeStep>, ResizeRefusal> {
        let Some(request) = &known.request else {
            return Ok(None);
        };
        let Some(there) = self.find(&known.pod)? else {
            return Ok(None);
        };
        let desired = self.desired(&known.pod, request, &there)?;
        let shares = shares(&desired, &there)?;
        let before = self
            .model
            .inventory
            .pod(&known.pod.namespace, &known.pod.name);
        let before = before.and_then(|read| read.written.as_deref());
        let before = before.map(|written| with_limits(written, desired.limit_before, there.status));
        let size = NewSize {
            node: there.node.to_owned(),
            request: desired.request.clone(),
            before: before.unwrap_or_else(|| there.held.shares.clone()),
            shares,
        };
        if size.shares == there.held.shares {
            return Ok(Some(ResizeStep::Accept(size)));
        }
        let id = there.held.id.clone();
        let asked = explicit(&size.shares, &there.held.shares);
        let has = there.held.shares.iter().zip(&size.shares);
        let grows = has.clone().any(|(has, wants)| wants.bytes > has.bytes);
        for (_, wants) in has.filter(|(has, wants)| wants.bytes > has.bytes) {
            self.has_room(&there, wants)?;
        }
        let mut pairs = there.held.shares.iter().zip(&size.shares);
        let raises = self.bounds_bursts() && pairs.any(|(has, wants)| wants.limit > has.limit);
        if grows || raises {
            let counted = cards::larger(size.shares.clone(), &there.held.shares);
            self.is_within_queues(&known.pod, &desired)?;
            self.count(&known.pod, &counted);
        }
        Ok(Some(ResizeStep::Ask { id, asked, size }))
    }

    /// The pod where it runs; `None` if it ends, or its agent has yet to take it in.
    fn find(&self, pod: &PodRef) -> Result<Option<ResizingPod<'_>>, ResizeRefusal> {
        let model = self.model;
        let read = model.inventory.pod(&pod.namespace, &pod.name);
        let read = read.filter(|read| !read.is_over() && !read.is_ending());
        let Some(node) = read.and_then(|read| read.node()) else {
            return Ok(None);
        };
        if model.ending.contains_key(&pod.uid) || model.is_suspended(&pod.uid) {
            return Ok(None);
        }
        let agent = model.agents.of(node).filter(|agent| agent.is_here);
        let Some(agent) = agent else {
            let why = format!("node {node} has no agent that answers");
            return Err(ResizeRefusal::deferred(why));
        };
        let held = agent.status.of_pod(&pod.uid);
        let held = held.filter(|held| held.stage == AgentAllocationState::Allocated);
        Ok(held.map(|held| ResizingPod {
            node,
            status: &agent.status,
            held,
        }))
    }

    /// The request that a pod has now, if its share can become that. Admission refuses the others; it may have been
    /// away.
    fn desired(
        &self,
        pod: &PodRef,
        request: &ResizeRequest,
        there: &ResizingPod<'_>,
    ) -> Result<DesiredSize, ResizeRefusal> {
        let desired = request.desired.clone().ok_or_else(|| {
            ResizeRefusal::infeasible("a running pod keeps one of gpu-memory and gpu-fraction")
        })?;
        if subjects(&desired) != subjects(&request.allocated) {
            let why = format!(
                "the share was given for {}, and its kind stays",
                request.allocated
            );
            return Err(ResizeRefusal::infeasible(why));
        }
        let object = self.model.inventory.find("Pod", &pod.namespace, &pod.name);
        let object = object.ok_or_else(|| ResizeRefusal::deferred("the pod is gone"))?;
        let cards = resize::cards_for(object, &desired);
        let cards = cards.map_err(ResizeRefusal::infeasible)?;
        let devices = match &cards {
            TaskGpuRequest::Shared { devices, .. } => {
                usize::try_from(*devices).unwrap_or(usize::MAX)
            }
            TaskGpuRequest::None | TaskGpuRequest::Whole(_) | TaskGpuRequest::Partitions(_) => 0,
        };
        let has = there.held.shares.len();
        if devices != has {
            let why = format!("it asks for {devices} GPUs and runs on {has}; their number stays");
            return Err(ResizeRefusal::infeasible(why));
        }
        Ok(DesiredSize {
            limit: resize::limit_for(object, &desired),
            limit_before: resize::limit_for(object, &request.allocated),
            request: desired,
            cards,
        })
    }

    /// Whether a card has room for the new share, beside all that others have of it or are about to get.
    fn has_room(&self, there: &ResizingPod<'_>, wants: &CardShare) -> Result<(), ResizeRefusal> {
        let card = card(there, &wants.card)?;
        if !card.is_healthy {
            let why = format!("{} is not healthy", wants.card);
            return Err(ResizeRefusal::deferred(why));
        }
        // The agent knows cards by UUID only. It refuses any other.
        let Ok(uuid) = wants.card.parse() else {
            return Ok(());
        };
        let capacity = CardCapacity {
            total: card.allocatable,
            reserved: Bytes::ZERO,
        };
        let ask = CardRequest {
            card: uuid,
            bytes: wants.bytes,
        };
        let holders = self.holders(there, &wants.card);
        fits(capacity, &holders, card.unmanaged, ask).map_err(|shortfall| {
            let why = shortfall.to_string();
            if shortfall.waiting_helps() {
                ResizeRefusal::deferred(why)
            } else {
                ResizeRefusal::infeasible(why)
            }
        })
    }

    fn holders(&self, there: &ResizingPod<'_>, card: &str) -> Vec<Holder> {
        let of_card = |name: &str, shares: &[CardShare]| {
            let share = shares.iter().find(|share| share.card == card)?;
            Some(Holder {
                name: name.to_owned(),
                bytes: share.bytes,
            })
        };
        let others = there
            .status
            .held
            .iter()
            .filter(|held| held.id != there.held.id)
            .filter(|held| held.suspension != ShareSuspension::Asleep);
        let held = others.filter_map(|held| {
            let shares = match &held.uid {
                Some(uid) => self.counted(uid, held.shares.clone()),
                None => held.shares.clone(),
            };
            of_card(&held.name, &shares)
        });
        let starts = self.model.pending_binds.all();
        let starts = starts.filter(|start| {
            start.node == there.node && there.status.of_pod(&start.pod.uid).is_none()
        });
        let starting = starts.filter_map(|start| of_card(&start.pod.full(), &start.cards));
        held.chain(starting).collect()
    }

    /// What a pod counts with, this round included.
    fn counted(&self, uid: &str, has: Vec<CardShare>) -> Vec<CardShare> {
        match self.asked.get(uid) {
            Some(asked) => cards::larger(has, asked),
            None => self.model.counted(uid, has),
        }
    }

    /// Whether the limits of pods count in any queue.
    fn bounds_bursts(&self) -> bool {
        let mut queues = self.cluster.queues.iter();
        queues.any(|queue| queue.burst_limit.is_some())
    }

    /// Whether the pod's queue and those above have room for the new size.
    fn is_within_queues(&self, pod: &PodRef, desired: &DesiredSize) -> Result<(), ResizeRefusal> {
        if !self.cluster.settings.has_quotas {
            return Ok(());
        }
        let name = pod.full();
        let mut jobs = self.cluster.jobs.iter();
        let job = jobs.find(|job| job.tasks.iter().any(|task| task.name == name));
        let Some(job) = job else {
            return Err(ResizeRefusal::deferred(
                "its group or its queue is not known",
            ));
        };
        if !self
            .cluster
            .queues
            .iter()
            .any(|queue| queue.name == job.queue)
        {
            let why = format!("queue {} does not exist", job.queue);
            return Err(ResizeRefusal::deferred(why));
        }
        let session = Session::open(self.now, self.cluster);
        match session.resize_shortfall(&name, &desired.cards, desired.limit) {
            Some(shortfall) => Err(ResizeRefusal::deferred(formatting::queue(&shortfall))),
            None => Ok(()),
        }
    }

    /// Counts a pod with the larger of its new size and the one it has.
    fn count(&mut self, pod: &PodRef, shares: &[CardShare]) {
        let name = pod.full();
        for job in &mut self.cluster.jobs {
            if let Some(number) = job.tasks.iter().position(|task| task.name == name) {
                let task = &mut Arc::make_mut(job).tasks[number];
                task.cards = cards::request_of(shares);
                task.limit = cards::largest_limit(shares).or(task.limit);
            }
        }
        self.asked.insert(pod.uid.clone(), shares.to_vec());
    }
}

fn card<'m>(there: &ResizingPod<'m>, uuid: &str) -> Result<&'m AgentCard, ResizeRefusal> {
    let card = there.status.card(uuid);
    card.ok_or_else(|| ResizeRefusal::deferred(format!("node {} has no GPU {uuid}", there.node)))
}

/// The new sizes for the agent. It keeps a limit that is not named, so a share that loses its limit names its size.
fn explicit(wanted: &[CardShare], has: &[CardShare]) -> Vec<CardShare> {
    let asked = wanted.iter().zip(has).map(|(wanted, has)| CardShare {
        limit: wanted.limit.or(has.limit.map(|_| wanted.bytes)),
        ..wanted.clone()
    });
    asked.collect()
}

/// The new size on the cards that the pod has.
fn shares(desired: &DesiredSize, there: &ResizingPod<'_>) -> Result<Vec<CardShare>, ResizeRefusal> {
    let mut shares = there.held.shares.clone();
    for share in &mut shares {
        let card = card(there, &share.card)?;
        share.bytes = card_assignment::bytes(&desired.cards, card);
        share.limit = card_assignment::limit(desired.limit, share.bytes, card);
        if share.bytes == Bytes::ZERO {
            let card = &share.card;
            let why = format!("it asks for less than 2 MiB of {card}, the smallest share");
            return Err(ResizeRefusal::infeasible(why));
        }
    }
    Ok(shares)
}
