//! What the service asks of the agent's loop. Reading needs no request: the view is there for all.

use apportion_abi::Ask;
use apportion_ledger::{AllocationId, Owner, Proposal};
use apportion_proto::v1;
use tokio::sync::oneshot;
use tonic::Status;

/// Where an answer goes.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, Status>>;

/// A request that changes something.
#[derive(Debug)]
pub(crate) enum Request {
    Allocate(Proposal, Answer<v1::AllocateReply>),
    Commit(AllocationId, Owner, Answer<v1::CommitReply>),
    Release(AllocationId, Answer<v1::ReleaseReply>),
    Resize(AllocationId, Vec<Ask>, Answer<v1::ResizeReply>),
}
