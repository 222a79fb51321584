//! What the model is told and what it wants done.
//!
//! Both are values: the shell turns watches and answers into events and performs effects, and nothing
//! else; a test does the same without a cluster.

use apportion_groups::ObjectView;
use serde_json::Value;

use super::agents::AgentStatus;
use super::grouper::{GroupMembership, GroupWrite, WriteSubject};
use crate::objects::numa::ZonesOfPod;
use crate::objects::volumes::VolumeBinding;

/// One pod, told apart from a later one of its name.
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

    /// Namespace and name.
    pub(crate) fn full(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) enum SchedulerEvent {
    /// An object was made or changed.
    Applied(Value),
    /// An object is gone.
    Gone(Value),
    /// All objects of a kind, as after the connection was lost.
    Listed(String, Vec<Value>),
    /// Objects of a kind cannot be read: the API server has none, or does not let this be read.
    Unreadable(String),
    /// What a node's agent has.
    AgentSaid(String, AgentStatus),
    /// A node's agent does not answer.
    AgentLost(String),
    /// A node has no agent any more.
    AgentGone(String),
    /// An agent took a pod in, under this id.
    Accepted(PodRef, String),
    /// An agent did not.
    Refused(PodRef, String),
    /// A pod was bound.
    Bound(PodRef),
    /// A pod was not bound.
    NotBound(PodRef, String),
    /// The API server lets a pod be ended.
    Evicted(PodRef),
    /// It does not, now.
    NotEvicted(PodRef, String),
    /// Something about a pod group was written, or was not.
    Grouped(WriteSubject, bool),
    /// What queues used before this scheduler led, as it was written down.
    UsedBefore(Option<String>),
}

/// What an object's status is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatusUpdate {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The fields that are ours.
    pub(crate) status: Value,
    /// What is wrong with the object, where that is new.
    pub(crate) news: Option<String>,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SchedulerEffect {
    /// Ask a node's agent to take a pod in; the answer is an event.
    Allocate {
        node: String,
        pod: PodRef,
        /// Cards with bytes.
        shares: Vec<(String, u64)>,
    },
    /// Tie an allocation to its pod.
    Commit {
        node: String,
        id: String,
        pod: PodRef,
    },
    /// Give an allocation back.
    Release { node: String, id: String },
    /// Write on a pod where it goes, then bind it; the answer is an event.
    Bind {
        node: String,
        pod: PodRef,
        cards: Vec<(String, u64)>,
        /// What kind of cards it got, in KAI's word; nothing without cards.
        received: Option<&'static str>,
        /// What it gets of which NUMA zones.
        zones: ZonesOfPod,
        /// What is bound before.
        volumes: Vec<VolumeBinding>,
        /// The group that it is in, unless it says so already.
        joins: Option<GroupMembership>,
    },
    /// End a pod through the eviction API; the answer is an event.
    Evict(PodRef),
    /// Write a status.
    Report(StatusUpdate),
    /// Say something about a pod.
    Tell {
        pod: PodRef,
        news: PodEventReason,
        message: String,
    },
    /// Say on a node's `GpuNode`, if it is of this version, what is known of its agent.
    Readiness {
        node: String,
        version: String,
        is: AgentReadiness,
    },
    /// Write something about a pod group; the answer is an event.
    Group(GroupWrite),
    /// Write down what queues used.
    Remember(String),
}

/// What the scheduler says for an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentReadiness {
    /// Nothing is heard of it.
    Silent,
    /// It is heard again, and has GPUs to give.
    Serving,
    /// It is heard again, and has none.
    NoHealthyCard,
}

/// What is said about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PodEventReason {
    /// It is bound.
    Scheduled,
    /// It waits.
    Unschedulable,
    /// It had a place and could not be bound there.
    NotBound,
    /// It is ended for others.
    Evicted,
    /// It was to be ended for others, and may not be.
    NotEvicted,
    /// It runs, and its node's agent does not take it in.
    NotAdopted,
}
