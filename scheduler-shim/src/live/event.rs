//! The model's input and output: events and effects.
//!
//! Both are plain values. The shell turns watches and answers into events and performs effects, nothing else. A test
//! does the same without a cluster.

use std::time::Duration;

use apportion_abi::BurstTerms;
use apportion_groups::ObjectView;
use serde_json::Value;

use super::agents::AgentStatus;
use super::claims::{ClaimReservation, ReservedClaim};
use super::grouper::{GroupMembership, GroupWrite, WriteSubject};
use apportion_model::cards::CardShare;
use apportion_model::pod_zones::ZonesOfPod;
use apportion_model::volumes::VolumeBinding;

/// One pod. Its UID distinguishes it from a later pod of the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl PodRef {
    /// The pod of an object.
    pub(crate) fn of(object: ObjectView<'_>) -> Self {
        Self {
            namespace: object.namespace().to_owned(),
            name: object.name().to_owned(),
            uid: object.uid().to_owned(),
        }
    }

    pub(crate) fn full(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Debug)]
pub(crate) enum SchedulerEvent {
    /// An object was created or changed.
    Applied(Value),
    /// An object was deleted.
    Gone(Value),
    /// All objects of a kind, as after a reconnect of the watch.
    Listed(String, Vec<Value>),
    /// Objects of a kind cannot be read: the API server lacks the kind, or forbids it.
    Unreadable(String),
    /// A node's agent reported its status.
    AgentReported(String, AgentStatus),
    /// A node's agent does not answer.
    AgentLost(String),
    /// A node no longer has an agent.
    AgentGone(String),
    /// An agent made a reservation for a pod, with this id.
    Accepted(PodRef, String),
    /// An agent refused a pod.
    Refused(PodRef, String),
    /// An agent calls in memory for a pod, and has room if it is asked again soon.
    CalledIn(PodRef, String),
    /// An agent has changed the size of a running pod.
    Resized(PodRef),
    /// An agent has not changed it, and why.
    NotResized(PodRef, String),
    /// An agent has put the programs of a pod to sleep.
    Suspended(PodRef),
    /// An agent has not, and why.
    NotSuspended(PodRef, String),
    /// An agent has woken the programs of a pod.
    Resumed(PodRef),
    /// An agent has not, and why.
    NotResumed(PodRef, String),
    /// The write of a running pod's new size ended; whether it succeeded.
    AllocatedWritten(PodRef, bool),
    /// The claims of a pod were reserved for it.
    ClaimsReserved(PodRef, Vec<ReservedClaim>),
    /// The claims of a pod were released.
    ClaimsReleased(PodRef),
    /// A pod was bound.
    Bound(PodRef),
    /// A pod was not bound.
    NotBound(PodRef, String),
    /// The API server granted an eviction.
    Evicted(PodRef),
    /// The API server refused an eviction, for now.
    NotEvicted(PodRef, String),
    /// A write about a pod group ended; whether it succeeded.
    Grouped(WriteSubject, bool),
    /// The stored usage history of the queues, if there is one.
    UsageHistoryRead(Option<String>),
}

/// A status to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatusUpdate {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The status fields that the scheduler owns.
    pub(crate) status: Value,
    /// What is wrong with the object, where that is new.
    pub(crate) warning: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SchedulerEffect {
    /// Send a request to the agent of a node.
    AskAgent {
        node: String,
        request: AgentRequest,
    },
    /// Write on a running pod what it has now; the answer is an event.
    WriteAllocated {
        pod: PodRef,
        cards: Vec<CardShare>,
        /// The request that it is for.
        request: String,
    },
    /// Bind a pod, with what is written on it; the answer is an event.
    Bind {
        node: String,
        pod: PodRef,
        cards: Vec<CardShare>,
        /// The kind of cards it got, in KAI's word; `None` without cards.
        received: Option<&'static str>,
        /// The request that its share is for; `None` without a share, or where a resize could not follow it.
        allocated: Option<String>,
        /// What it gets from each NUMA zone.
        zones: ZonesOfPod,
        /// Volumes to bind first.
        volumes: Vec<VolumeBinding>,
        /// Resource claims to reserve first.
        claims: Vec<ClaimReservation>,
        /// Whether they are reserved already.
        are_claims_reserved: bool,
        /// The group to write on the pod, unless the pod names it already.
        joins: Option<GroupMembership>,
    },
    /// Reserve claims for a pod whose devices must get ready before it is bound; the answer is an event, that the pod is
    /// not bound if that fails.
    ReserveClaims {
        pod: PodRef,
        claims: Vec<ClaimReservation>,
    },
    /// Remove a pod from its claims, and take back the devices that they got for it; the answer is an event.
    ReleaseClaims {
        pod: PodRef,
        claims: Vec<ClaimReservation>,
    },
    /// Delete a claim in place of extended resources that was left behind, unless its pod has a node by now.
    DeleteClaim {
        pod: PodRef,
        claim: String,
        uid: String,
    },
    /// Evict a pod; the answer is an event.
    Evict(PodRef),
    WriteStatus(StatusUpdate),
    /// Publish an event about a pod.
    PublishEvent {
        pod: PodRef,
        reason: PodEventReason,
        message: String,
    },
    /// Write an agent's readiness on its `GpuNode`, if that is still of this version.
    WriteReadiness {
        node: String,
        version: String,
        is: AgentReadiness,
    },
    /// Write something about a pod group; the answer is an event.
    Group(GroupWrite),
    /// Store the usage history.
    StoreUsageHistory(String),
}

/// What the scheduler asks an agent to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentRequest {
    /// Reserve shares for a pod; the answer is an event.
    Allocate {
        pod: PodRef,
        /// The cards and how many bytes of each.
        shares: Vec<CardShare>,
        /// What it is worth beside others that burst.
        terms: BurstTerms,
        /// After how long without a CUDA call its programs are suspended, if ever.
        idle_after: Option<Duration>,
    },
    /// Tie an allocation to its pod.
    Commit {
        id: String,
        pod: PodRef,
    },
    Release {
        id: String,
    },
    /// Change the size of a running pod; the answer is an event.
    Resize {
        id: String,
        pod: PodRef,
        /// Its cards and how many bytes of each.
        shares: Vec<CardShare>,
    },
    /// Put the programs of a pod to sleep; the answer is an event.
    Suspend {
        id: String,
        pod: PodRef,
    },
    /// Wake the programs of a pod; the answer is an event.
    Resume {
        id: String,
        pod: PodRef,
    },
}

impl AgentRequest {
    /// The effect that sends this to the agent of a node.
    pub(crate) fn to(self, node: String) -> SchedulerEffect {
        SchedulerEffect::AskAgent {
            node,
            request: self,
        }
    }
}

/// What the scheduler writes about an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentReadiness {
    /// It does not answer.
    Silent,
    /// It answers again, and has healthy GPUs.
    Serving,
    /// It answers again, and has none.
    NoHealthyCard,
}

/// The reason of an event about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PodEventReason {
    Scheduled,
    /// It waits, and why.
    Unschedulable,
    /// It has a place, and its devices are not ready yet.
    AwaitsDevices,
    /// It had a place, and binding it failed.
    NotBound,
    /// It was evicted for others.
    Evicted,
    /// Its eviction was refused.
    NotEvicted,
    /// It was suspended for others.
    Suspended,
    /// It could not be suspended.
    NotSuspended,
    /// It was suspended, and goes on.
    Resumed,
    /// It runs, and its node's agent refuses to allocate for it.
    NotAdopted,
    /// It runs, and has another size now.
    Resized,
    /// It runs, and there is no room for its new size now.
    ResizeDeferred,
    /// It runs, and cannot have its new size where it is.
    ResizeInfeasible,
}
