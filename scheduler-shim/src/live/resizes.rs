//! Resizes: running pods whose request was changed, until they have what it says.
//!
//! The request on the pod is desired, `apportion.dev/allocated` is what was given. As long as they differ, each round
//! compares what the pod has with what it wants. What certainly does not fit is not asked for: the card and the queues
//! are looked at first. Then the node's agent decides, by its ledger. What it accepted is written on the pod. Until the
//! pod shows it, the pod counts with the larger of the two sizes.
//!
//! A pod that may burst has two numbers, and either can change. Only what it is guaranteed counts on its card and in its
//! queues. Whether its limit is too high, or its guarantee is in use by others that burst, the agent says.
//!
//! A pod that does not change its request costs nothing here. A resize that waits reserves nothing and evicts nobody;
//! once there is room, it goes before pods that wait.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_groups::ObjectView;

use super::event::{PodEventReason, PodRef, SchedulerEffect};
use super::model::ClusterModel;
use apportion_model::cards::{self, CardShare};
use apportion_model::resize::{self, ResizeRequest};

mod attempt;

pub(crate) use attempt::PlannedResize;

/// The shortest time between two events about the same resize.
const QUIET: Duration = Duration::from_secs(30);
/// How long a pod may take to show what was written on it.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);
/// The first and the longest pause after a failure. After a refusal without a request the pause is the first one.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// Whether waiting helps a resize, in the words of Kubernetes' in-place resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResizeVerdict {
    /// There is no room now.
    Deferred,
    /// There never will be on this node.
    Infeasible,
}

/// Why a pod does not have its desired size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResizeRefusal {
    pub(crate) verdict: ResizeVerdict,
    /// Why, with numbers.
    pub(crate) why: String,
}

impl ResizeRefusal {
    pub(crate) fn deferred(why: impl Into<String>) -> Self {
        Self {
            verdict: ResizeVerdict::Deferred,
            why: why.into(),
        }
    }

    pub(crate) fn infeasible(why: impl Into<String>) -> Self {
        Self {
            verdict: ResizeVerdict::Infeasible,
            why: why.into(),
        }
    }
}

/// A new size of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NewSize {
    node: String,
    /// The request that it is for.
    request: String,
    /// Its cards with bytes.
    shares: Vec<CardShare>,
    /// What is written on the pod.
    before: Vec<CardShare>,
}

impl NewSize {
    /// What changed, one card after the other; nothing if the bytes are the same.
    fn changes(&self) -> String {
        let mut changes = Vec::new();
        for share in &self.shares {
            let CardShare { card, bytes, limit } = share;
            let before = self.before.iter().find(|before| before.card == *card);
            let is_changed = |before: &&CardShare| (before.bytes, before.limit) != (*bytes, *limit);
            if let Some(before) = before.filter(is_changed) {
                let (was, is) = (size_text(before), size_text(share));
                changes.push(format!("{was} -> {is} on {card}"));
            }
        }
        changes.join(", ")
    }
}

/// What a pod has of a card: `3000 MiB`, or `3000 MiB up to 12.0 GiB`.
fn size_text(share: &CardShare) -> String {
    match share.limit {
        Some(limit) => format!("{} up to {limit}", share.bytes),
        None => share.bytes.to_string(),
    }
}

/// The stage of a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ResizeStage {
    /// Nobody was asked, or it was refused.
    Waiting,
    /// The node's agent was asked.
    Asked(NewSize),
    /// The agent has accepted it, and it has to be written on the pod.
    Accepted(NewSize),
    /// The API server was asked to write it.
    Writing(NewSize),
    /// It was written, and the pod does not show it yet.
    Written(NewSize),
}

impl ResizeStage {
    fn size(&self) -> Option<&NewSize> {
        match self {
            Self::Waiting => None,
            Self::Asked(size)
            | Self::Accepted(size)
            | Self::Writing(size)
            | Self::Written(size) => Some(size),
        }
    }
}

/// The resize of one pod.
#[derive(Clone, Debug)]
struct PendingResize {
    pod: PodRef,
    /// What the pod says; `None` if its request is what it has, and the new size is on its way all the same.
    request: Option<ResizeRequest>,
    stage: ResizeStage,
    /// The last refusal.
    refusal: Option<ResizeRefusal>,
    /// The last refusal that was published, and when.
    published: Option<(ResizeRefusal, Duration)>,
    /// Nothing is tried before.
    next_try: Duration,
    pause: Duration,
}

impl PendingResize {
    fn new(pod: PodRef) -> Self {
        Self {
            pod,
            request: None,
            stage: ResizeStage::Waiting,
            refusal: None,
            published: None,
            next_try: Duration::ZERO,
            pause: Duration::ZERO,
        }
    }

    /// Begins anew: the pod says something else.
    fn restart(&mut self) {
        self.refusal = None;
        self.published = None;
        self.next_try = Duration::ZERO;
        self.pause = Duration::ZERO;
    }

    fn failed(&mut self, now: Duration) {
        self.pause = (self.pause * 2).clamp(FIRST, LONGEST);
        self.next_try = now + self.pause;
    }

    /// The node's agent has the new size. Returns the event about it.
    fn accept(&mut self, size: NewSize) -> Option<SchedulerEffect> {
        let message = size.changes();
        self.stage = ResizeStage::Accepted(size);
        self.restart();
        (!message.is_empty()).then(|| SchedulerEffect::PublishEvent {
            pod: self.pod.clone(),
            reason: PodEventReason::Resized,
            message,
        })
    }

    /// Records a refusal. Returns its event, unless the same was said before. Numbers change all the time, so a new
    /// text for the same verdict waits.
    fn refuse(&mut self, now: Duration, refusal: ResizeRefusal) -> Option<SchedulerEffect> {
        let is_repeated = self.published.as_ref().is_some_and(|(last, at)| {
            *last == refusal || (last.verdict == refusal.verdict && now < *at + QUIET)
        });
        self.refusal = Some(refusal.clone());
        if is_repeated {
            return None;
        }
        let reason = match refusal.verdict {
            ResizeVerdict::Deferred => PodEventReason::ResizeDeferred,
            ResizeVerdict::Infeasible => PodEventReason::ResizeInfeasible,
        };
        let request = self.request.as_ref();
        let desired = request.and_then(|request| request.desired.as_deref());
        let message = format!("{}: {}", desired.unwrap_or("no request"), refusal.why);
        self.published = Some((refusal, now));
        Some(SchedulerEffect::PublishEvent {
            pod: self.pod.clone(),
            reason,
            message,
        })
    }
}

impl ClusterModel {
    /// What a pod counts with: what it has, or, while its size changes, the largest of that, of what is written on it
    /// and of its new size.
    pub(crate) fn counted(&self, uid: &str, has: Vec<CardShare>) -> Vec<CardShare> {
        let Some(known) = self.resizes.0.get(uid) else {
            return has;
        };
        let read = self.inventory.pod(&known.pod.namespace, &known.pod.name);
        let written = read.and_then(|read| read.written.as_deref());
        let wanted = known.stage.size().map(|size| size.shares.as_slice());
        let others = [written, wanted].into_iter().flatten();
        others.fold(has, cards::larger)
    }
}

/// The resizes of all pods, by UID.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingResizes(BTreeMap<String, PendingResize>);

impl PendingResizes {
    /// The API server shows a pod that has not ended.
    pub(crate) fn applied(&mut self, pod: &PodRef, object: ObjectView<'_>) {
        let request = resize::pending(object);
        if request.is_none() && !self.0.contains_key(&pod.uid) {
            return;
        }
        let known = self.0.entry(pod.uid.clone());
        let known = known.or_insert_with(|| PendingResize::new(pod.clone()));
        if known.request != request {
            known.request = request;
            known.restart();
        }
        if let ResizeStage::Writing(size) | ResizeStage::Written(size) = &known.stage
            && resize::allocated(object) == Some(&size.request)
        {
            known.stage = ResizeStage::Waiting;
            known.next_try = Duration::ZERO;
        }
        if known.request.is_none() && known.stage == ResizeStage::Waiting {
            self.0.remove(&pod.uid);
        }
    }

    pub(crate) fn gone(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// The node's agent has accepted the new size of a pod.
    pub(crate) fn accepted(&mut self, uid: &str) -> Option<SchedulerEffect> {
        let known = self.0.get_mut(uid)?;
        let ResizeStage::Asked(size) = &known.stage else {
            return None;
        };
        let size = size.clone();
        known.accept(size)
    }

    /// The node's agent has refused the new size of a pod, or has not answered.
    pub(crate) fn refused(
        &mut self,
        now: Duration,
        uid: &str,
        why: String,
    ) -> Option<SchedulerEffect> {
        let known = self.0.get_mut(uid)?;
        if !matches!(known.stage, ResizeStage::Asked(_)) {
            return None;
        }
        known.stage = ResizeStage::Waiting;
        known.failed(now);
        if known.request.is_none() {
            self.0.remove(uid);
            return None;
        }
        known.refuse(now, ResizeRefusal::deferred(why))
    }

    /// The pods for which the agent of this node has yet to answer.
    pub(crate) fn awaiting_agent(&self, node: &str) -> Vec<PodRef> {
        let waiting = self
            .0
            .values()
            .filter(|known| matches!(&known.stage, ResizeStage::Asked(size) if size.node == node));
        waiting.map(|known| known.pod.clone()).collect()
    }

    /// The API server has written the new size on a pod, or has not.
    pub(crate) fn written(&mut self, now: Duration, uid: &str, is_done: bool) {
        let Some(known) = self.0.get_mut(uid) else {
            return;
        };
        let ResizeStage::Writing(size) = &known.stage else {
            return;
        };
        let size = size.clone();
        if is_done {
            known.stage = ResizeStage::Written(size);
            known.next_try = now + SHOWN_WITHIN;
        } else {
            known.stage = ResizeStage::Accepted(size);
            known.failed(now);
        }
    }

    /// The new sizes that are to be written now.
    pub(crate) fn due_writes(&mut self, now: Duration) -> Vec<SchedulerEffect> {
        let mut effects = Vec::new();
        for known in self.0.values_mut().filter(|known| now >= known.next_try) {
            match &known.stage {
                ResizeStage::Accepted(size) => {
                    let size = size.clone();
                    effects.push(SchedulerEffect::WriteAllocated {
                        pod: known.pod.clone(),
                        cards: size.shares.clone(),
                        request: size.request.clone(),
                    });
                    known.stage = ResizeStage::Writing(size);
                }
                // Somebody else has written over it.
                ResizeStage::Written(_) => known.stage = ResizeStage::Waiting,
                ResizeStage::Waiting | ResizeStage::Asked(_) | ResizeStage::Writing(_) => {}
            }
        }
        self.0
            .retain(|_, known| known.request.is_some() || known.stage != ResizeStage::Waiting);
        effects
    }

    /// Why a pod does not have its desired size, for `explain`.
    pub(crate) fn explain(&self, uid: &str) -> Option<String> {
        let known = self.0.get(uid)?;
        let request = known.request.as_ref()?;
        let desired = request.desired.as_deref().unwrap_or("no request");
        let state = match (&known.stage, &known.refusal) {
            (ResizeStage::Waiting, Some(refusal)) => match refusal.verdict {
                ResizeVerdict::Deferred => format!("is deferred: {}", refusal.why),
                ResizeVerdict::Infeasible => format!("is infeasible: {}", refusal.why),
            },
            (ResizeStage::Waiting, None) => "is next".to_owned(),
            (ResizeStage::Asked(_), _) => "waits for the node's agent".to_owned(),
            (ResizeStage::Accepted(_) | ResizeStage::Writing(_) | ResizeStage::Written(_), _) => {
                "is in progress".to_owned()
            }
        };
        Some(format!(
            "resize from {} to {desired} {state}",
            request.allocated
        ))
    }
}
