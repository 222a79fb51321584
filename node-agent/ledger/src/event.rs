//! What happens to the ledger, what it makes the agent do, and how it says no.

use std::time::Duration;

use apportion_abi::{Bytes, CardCapacity, CardRequest, CardUuid, Shortfall};

use crate::allocation::{Allocation, AllocationId, AllocationOwner, ProcessId};
use crate::card::Health;
use crate::sample::NodeSample;

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EpochMillis(pub u64);

impl EpochMillis {
    /// This long after.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        )
    }
}

/// What is done to a process that exceeds or bypasses its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffenderPolicy {
    /// It is reported.
    #[default]
    Observe,
    /// It is reported and killed.
    Kill,
    /// It is reported and its pod is evicted; a process of no pod is killed.
    Evict,
}

/// A placement that somebody chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementProposal {
    /// Unique to the wish.
    pub key: String,
    /// What people call it.
    pub name: String,
    /// What is wanted, one entry a card.
    pub asks: Vec<CardRequest>,
    /// How long the reservation waits for its commit.
    pub ttl: Duration,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerEvent {
    /// A card is there. Repeating it changes its capacity.
    CardFound {
        /// Which.
        card: CardUuid,
        /// What it has.
        capacity: CardCapacity,
    },
    /// A card's health changed.
    CardHealth {
        /// Which.
        card: CardUuid,
        /// How it is now.
        health: Health,
    },
    /// A card reported an error.
    CardFault {
        /// Which.
        card: CardUuid,
        /// The error's number.
        xid: u64,
    },
    /// A card's driver was asked what recovery it needs.
    CardChecked {
        /// Which.
        card: CardUuid,
        /// Whether it needs any.
        needs_recovery: bool,
    },
    /// An allocation of an earlier run of the agent. It was accepted then and is not judged again.
    Adopted(Allocation),
    /// Somebody wants an allocation.
    Allocate(PlacementProposal),
    /// A reserved allocation got its owner.
    Commit {
        /// Which.
        id: AllocationId,
        /// For whom it is.
        owner: AllocationOwner,
    },
    /// The cards of an allocation are given whole: nothing in its containers keeps a limit.
    GivenWhole {
        /// Which.
        id: AllocationId,
    },
    /// Another device plugin gave cards to a pod. That is so, whatever there is to give.
    TakenWhole {
        /// The pod's UID.
        pod: String,
        /// What people call it.
        name: String,
        /// Which.
        cards: Vec<CardUuid>,
    },
    /// An allocation is given back.
    Release {
        /// Which.
        id: AllocationId,
    },
    /// The limits of an allocation are to change.
    Resize {
        /// Which.
        id: AllocationId,
        /// The new limits.
        asks: Vec<CardRequest>,
    },
    /// The owner of an allocation is no more.
    OwnerGone {
        /// Which allocation.
        id: AllocationId,
    },
    /// A process of an allocation is no more. The driver has its memory back, so what it took beyond
    /// its claims is overhead no longer.
    ProcessGone {
        /// Of which allocation.
        id: AllocationId,
        /// Which.
        process: ProcessId,
    },
    /// The last process of an allocation is no more.
    Emptied {
        /// Which allocation.
        id: AllocationId,
    },
    /// The cards and accounts were looked at.
    Sampled(NodeSample),
    /// Time passed.
    Tick,
}

/// What the agent must do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerEffect {
    /// Create the account with its limits.
    OpenAccount(AllocationId),
    /// Write one limit.
    SetLimit {
        /// Whose account.
        id: AllocationId,
        /// Of which card.
        card: CardUuid,
        /// How much.
        limit: Bytes,
    },
    /// Write one overhead.
    SetOverhead {
        /// Whose account.
        id: AllocationId,
        /// Of which card.
        card: CardUuid,
        /// How much.
        overhead: Bytes,
    },
    /// Remove the account.
    CloseAccount(AllocationId),
    /// End one process.
    Kill(ProcessId),
    /// Tell whoever watches.
    Notice(LedgerNotice),
    /// Write the checkpoint before the answer is given.
    Save,
    /// The answer to a request.
    Answer(Result<AllocationId, AllocationRefusal>),
}

/// Something to tell, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerNotice {
    /// What happened.
    pub kind: NoticeKind,
    /// To which allocation, with what people call it.
    pub allocation: Option<(AllocationId, String)>,
    /// On which card.
    pub card: Option<CardUuid>,
    /// By which process.
    pub process: Option<ProcessId>,
}

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoticeKind {
    /// A placement was accepted.
    Allocated,
    /// It got its owner.
    Committed,
    /// Its limits changed.
    Resized,
    /// It ends when its last process does.
    Draining,
    /// It is gone.
    Released,
    /// It was not committed in time.
    Expired,
    /// A process uses a card without charging the account, and its allocation uses more than it may.
    Bypassed,
    /// The processes of an allocation use more than its limit, and more beyond it than is forgiven.
    Overlimit,
    /// A process uses a card that its allocation was not granted.
    Ungranted,
    /// A process was killed for one of these three.
    Killed,
    /// The eviction of its pod was asked for, for one of these three.
    Evicted,
    /// The files of an account are gone or damaged; what its processes do is seen from outside only.
    Damaged,
    /// A card is there.
    CardFound,
    /// A card is not to be given out.
    CardUnhealthy,
    /// A card does not answer.
    CardLost,
    /// A card works again.
    CardHealthy,
}

/// Why a request was not met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationRefusal {
    /// It does not fit.
    #[error("{0}")]
    Shortfall(Shortfall),
    /// It names no card, no bytes or one card twice.
    #[error("{0}")]
    Malformed(&'static str),
    /// This node has no such card.
    #[error("this node has no GPU {0}")]
    UnknownCard(CardUuid),
    /// The card cannot be given out.
    #[error("{0} is not healthy")]
    Unhealthy(CardUuid),
    /// Nobody knows how much memory it has.
    #[error(
        "{0} does not report its memory size, so it cannot be shared until the agent is started with --card-memory"
    )]
    Sizeless(CardUuid),
    /// There is no such allocation.
    #[error("there is no allocation {0}")]
    UnknownAllocation(AllocationId),
    /// The same key was used for another wish.
    #[error("idempotency key {0:?} belongs to an allocation with other shares")]
    KeyReused(String),
    /// The allocation has another owner already.
    #[error("allocation {0} is committed to another owner")]
    Committed(AllocationId),
    /// The allocation was given back.
    #[error("allocation {0} was released and ends with its last process")]
    Draining(AllocationId),
    /// Its cards are given whole, and nothing would keep another limit.
    #[error("allocation {0} has whole GPUs and cannot be resized")]
    Whole(AllocationId),
    /// The allocation has nothing of the card.
    #[error("allocation {id} has no share of {card}")]
    NotGranted {
        /// Which allocation.
        id: AllocationId,
        /// Which card.
        card: CardUuid,
    },
}
