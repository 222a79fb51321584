//! What the service asks of the agent's loop. Reading needs no request: the view is there for all.

use apportion_abi::Ask;
use apportion_ledger::{AllocationId, Owner, Proposal, SlotId};
use apportion_proto::v1;
use tokio::sync::oneshot;
use tonic::Status;

use crate::cri::Facts;
use crate::kubelet::{Answers, Holder, News, Seen};

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
    /// The kubelet was looked at.
    Seen(Seen),
}

/// Whether a container may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prepared {
    /// Its grant is there.
    Granted,
    /// Its pod has no allocation.
    Unplaced,
}
