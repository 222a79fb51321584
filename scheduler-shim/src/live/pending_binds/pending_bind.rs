//! One pod on its way to a node.

use std::time::Duration;

use apportion_abi::BurstTerms;
use apportion_model::cards::CardShare;
use apportion_model::pod_zones::ZonesOfPod;
use apportion_model::volumes::VolumeBinding;

use crate::live::claims::{ClaimReservation, ReservedClaim};
use crate::live::event::{AgentRequest, PodEventReason, PodRef, SchedulerEffect};
use crate::live::grouper::GroupMembership;

/// The stage of a bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BindStage {
    /// Its claims are being reserved, or its devices are not ready yet.
    Attaching,
    /// It waits for the devices of the rest of its unit.
    Attached,
    /// Its agent was asked for a reservation.
    Asked,
    /// It will not start, and stays until these have answered.
    Withdrawn(OpenAnswers),
    /// It has a reservation, or needs none, and waits for the rest of its unit.
    Accepted(Option<String>),
    /// The API server was asked to bind it.
    Binding(Option<String>),
    /// The API server has bound it, and does not show it yet.
    Bound,
}

/// Who has yet to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenAnswers {
    /// The agent, about a reservation.
    pub(crate) agent: bool,
    /// The API server, about claims: first that they are reserved, then that they are released.
    pub(super) claims: bool,
}

/// How far the devices of a pod are.
#[derive(Clone, Debug)]
pub(crate) struct DeviceWait {
    /// When they were decided.
    pub(crate) since: Duration,
    /// Whether the claims are reserved.
    pub(crate) is_reserved: bool,
    /// The claims that are reserved.
    pub(crate) reserved: Vec<ReservedClaim>,
    /// What the pod waits for, as its last event says it.
    pub(crate) told: Option<String>,
}

/// A pod on its way to a node.
#[derive(Clone, Debug)]
pub(crate) struct PendingBind {
    pub(crate) pod: PodRef,
    pub(crate) node: String,
    /// Cards with bytes; empty if no agent is asked.
    pub(crate) cards: Vec<CardShare>,
    /// What it is worth beside others that burst.
    pub(crate) terms: BurstTerms,
    /// After how long without a CUDA call its programs are suspended, if ever.
    pub(crate) idle_after: Option<Duration>,
    pub(crate) received: Option<&'static str>,
    /// The request that its share is for.
    pub(crate) allocated: Option<String>,
    /// What it is expected to get from each NUMA zone.
    pub(crate) zones: ZonesOfPod,
    /// Volumes to bind before the pod.
    pub(crate) volumes: Vec<VolumeBinding>,
    /// Resource claims to reserve before the pod is bound.
    pub(crate) claims: Vec<ClaimReservation>,
    /// Set if devices of its claims must get ready before it is bound.
    pub(crate) devices: Option<DeviceWait>,
    /// The group to write on the pod.
    pub(crate) joins: Option<GroupMembership>,
    pub(crate) stage: BindStage,
    pub(super) unit: u64,
}

impl PendingBind {
    /// A bind that was decided.
    pub(crate) fn new(
        pod: PodRef,
        node: String,
        cards: Vec<CardShare>,
        received: Option<&'static str>,
    ) -> Self {
        Self {
            pod,
            node,
            cards,
            terms: BurstTerms::default(),
            idle_after: None,
            received,
            allocated: None,
            zones: Vec::new(),
            volumes: Vec::new(),
            claims: Vec::new(),
            devices: None,
            joins: None,
            stage: BindStage::Attached,
            unit: 0,
        }
    }

    /// The event about a bound pod.
    pub(super) fn bound_event(&self) -> SchedulerEffect {
        let cards: Vec<&str> = self.cards.iter().map(|share| share.card.as_str()).collect();
        let on = match cards.as_slice() {
            [] => String::new(),
            cards => format!(", on {}", cards.join(" and ")),
        };
        let message = format!(
            "Successfully assigned pod {} to node {} at node-pool default{on}",
            self.pod.full(),
            self.node
        );
        SchedulerEffect::PublishEvent {
            pod: self.pod.clone(),
            reason: PodEventReason::Scheduled,
            message,
        }
    }

    /// Whether its claims are reserved, or being reserved, although it is not being bound yet.
    pub(super) fn has_claims(&self) -> bool {
        self.devices.is_some()
    }

    pub(super) fn reserve_claims(&self) -> SchedulerEffect {
        let (pod, claims) = (self.pod.clone(), self.claims.clone());
        SchedulerEffect::ReserveClaims { pod, claims }
    }

    /// Releases its claims. Before they are reserved, there is an answer to wait for: the writes would cross.
    pub(super) fn release_claims(&self) -> Option<SchedulerEffect> {
        let (pod, claims) = (self.pod.clone(), self.claims.clone());
        let is_reserved = self.devices.as_ref()?.is_reserved;
        is_reserved.then_some(SchedulerEffect::ReleaseClaims { pod, claims })
    }

    pub(super) fn release(&self) -> Option<SchedulerEffect> {
        let (BindStage::Accepted(Some(id)) | BindStage::Binding(Some(id))) = &self.stage else {
            return None;
        };
        let (node, id) = (self.node.clone(), id.clone());
        Some(AgentRequest::Release { id }.to(node))
    }
}
