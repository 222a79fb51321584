//! What the service asks of the agent's loop. Reading needs no request: the view is there for all.

use apportion_abi::Ask;
use std::collections::BTreeSet;

use apportion_ledger::{AllocationId, Owner, Proposal, SlotId, WholeId};
use apportion_proto::v1;
use tokio::sync::oneshot;
use tonic::Status;

use crate::cri::Facts;
use crate::kubelet::{Answers, Holder, News, Rival, Seen, WholeHolder};

/// Where an answer goes.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, Status>>;

/// A request that changes something.
#[derive(Debug)]
pub(crate) enum Request {
    Allocate(Proposal, Answer<v1::AllocateReply>),
    Commit(AllocationId, Owner, Answer<v1::CommitReply>),
    Release(AllocationId, Answer<v1::ReleaseReply>),
    Resize(AllocationId, Vec<Ask>, Answer<v1::ResizeReply>),
    /// The container runtime is known; how are slots answered for?
    Runtime(Facts, Answer<Answers>),
    /// The kubelet gives a slot to a container.
    Handed(SlotId),
    /// A container on a slot of this pod is about to start.
    Prepare(SlotId, Holder, Answer<Prepared>),
    /// Something happened with the kubelet that is counted.
    Kubelet(News),
    /// The kubelet gives whole cards to a container.
    HandWhole(Vec<WholeId>, Answer<()>),
    /// A container with whole cards is about to start.
    PrepareWhole(Starting, Answer<()>),
    /// Another owner gives cards away, or none does any more.
    Rival(Option<Rival>),
    /// The kubelet was looked at.
    Seen(Seen),
}

/// A container with whole cards that is about to start.
#[derive(Debug)]
pub(crate) struct Starting {
    /// The pod's UID.
    pub(crate) pod: String,
    pub(crate) holder: WholeHolder,
    /// The container's own devices.
    pub(crate) ids: BTreeSet<WholeId>,
}

/// Whether a container may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prepared {
    /// Its grant is there.
    Granted,
    /// Its pod has no allocation.
    Unplaced,
}
