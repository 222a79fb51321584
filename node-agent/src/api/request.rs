//! Requests to the agent's loop. Reading needs none, because every reader has the view.

use std::collections::BTreeSet;

use apportion_ledger::{AllocationId, AllocationOwner, PlacementProposal, SlotId, WholeCardId};
use apportion_proto::v1;
use tokio::sync::oneshot;
use tonic::Status;

use crate::api::wire::NewSizes;
use crate::claims::claim_request::ClaimRequest;
use crate::kubelet::allocate_strategy::AllocateStrategy;
use crate::kubelet::rival_owner::RivalOwner;
use crate::kubelet::snapshot::{Holder, KubeletSnapshot};
use crate::kubelet::stats::KubeletEvent;
use crate::kubelet::whole_card_holders::WholeCardHolder;
use crate::runtime::cri::RuntimeCapabilities;

/// Where an answer is sent.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, Status>>;

/// What a newcomer does while memory that others use above their guarantees is called in for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewcomerPatience {
    /// It waits for the answer.
    Waits,
    /// It has no time to wait, and asks again soon.
    AsksAgain,
}

/// Who asks for a suspension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuspensionCaller {
    Client,
    /// The scheduler of the pod.
    Scheduler,
}

/// A request that changes something.
#[derive(Debug)]
pub(crate) enum AgentRequest {
    Allocate(
        PlacementProposal,
        NewcomerPatience,
        Answer<v1::AllocateReply>,
    ),
    Commit(AllocationId, AllocationOwner, Answer<v1::CommitReply>),
    Release(AllocationId, Answer<v1::ReleaseReply>),
    Resize(AllocationId, NewSizes, Answer<v1::ResizeReply>),
    Suspend(AllocationId, SuspensionCaller, Answer<v1::SuspendReply>),
    Resume(AllocationId, Answer<v1::ResumeReply>),
    /// The container runtime is known. The answer is the delivery strategy.
    Runtime(RuntimeCapabilities, Answer<AllocateStrategy>),
    /// The kubelet allocates a slot to a container.
    Handed(SlotId),
    /// A container on a slot of this pod is about to start.
    Prepare(SlotId, Holder, Answer<PrepareOutcome>),
    /// An event of the kubelet, to be counted.
    Kubelet(KubeletEvent),
    /// The kubelet allocates whole cards to a container.
    HandWhole(Vec<WholeCardId>, Answer<()>),
    /// A container with whole cards is about to start.
    PrepareWhole(StartingContainer, Answer<()>),
    /// Another owner allocates GPUs on this node, or has left.
    Rival(Option<RivalOwner>),
    /// The kubelet prepares a ResourceClaim. The answer is the name of the CDI device with its grant.
    PrepareClaim(ClaimRequest, Answer<String>),
    /// The kubelet has ended the last container that used the ResourceClaim with this UID.
    UnprepareClaim(String, Answer<()>),
    /// The kubelet was polled.
    KubeletPolled(KubeletSnapshot),
}

/// A container with whole cards that is about to start.
#[derive(Debug)]
pub(crate) struct StartingContainer {
    pub(crate) pod: String,
    pub(crate) holder: WholeCardHolder,
    /// The container's own devices.
    pub(crate) ids: BTreeSet<WholeCardId>,
}

/// Whether a container may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrepareOutcome {
    /// Its grant is written.
    Granted,
    /// Its pod has no allocation.
    Unplaced,
}
