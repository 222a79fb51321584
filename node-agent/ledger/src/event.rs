//! The ledger's events, effects and refusals.

use std::time::Duration;

use apportion_abi::{
    BurstTerms, Bytes, CardCapacity, CardRequest, CardUuid, OvercommitFactor, Shortfall,
};

use crate::allocation::{Allocation, AllocationOwner};
use crate::burst_request::{BurstRange, BurstRequest};

use crate::call_request::{CallClaimant, GuaranteeCall};
use crate::card::Health;
use crate::ids::{AllocationId, ProcessId};
use crate::sample::NodeSample;

/// What happens to a process that exceeds or bypasses its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffenderPolicy {
    /// The agent reports the offence and does nothing else.
    #[default]
    Observe,
    /// It is reported and killed.
    Kill,
    /// It is reported and its pod is evicted; a process of no pod is killed.
    Evict,
}

/// A request for a placement that the caller has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementProposal {
    /// The idempotency key of the request.
    pub key: String,
    /// The name for people.
    pub name: String,
    /// The requested memory, one entry for each card.
    pub asks: Vec<CardRequest>,
    /// The limits of the cards whose limit is above what is asked for. `asks` is then what is guaranteed.
    pub ceilings: Vec<CardRequest>,
    /// What it is worth beside others that burst.
    pub terms: BurstTerms,
    /// How long the reservation waits for its commit.
    pub ttl: Duration,
    /// After how long without a call of the driver its processes are put to sleep; `None` for never.
    pub idle_after: Option<Duration>,
}

/// An input of the ledger: a request, a sample, or a change of the machine.
#[expect(missing_docs, reason = "the types of the fields say what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerEvent {
    /// A card exists. A repeated event updates its capacity.
    CardFound {
        card: CardUuid,
        capacity: CardCapacity,
    },
    /// A card's health changed.
    CardHealth {
        card: CardUuid,
        health: Health,
    },
    /// A card reported an XID.
    CardFault {
        card: CardUuid,
        xid: u64,
    },
    /// The driver was asked whether a card needs a recovery.
    CardChecked {
        card: CardUuid,
        /// Whether it needs one.
        needs_recovery: bool,
    },
    /// An allocation of an earlier run of the agent. It was admitted then and is not checked again.
    Adopted(Allocation),
    /// A client requests an allocation.
    Allocate(PlacementProposal),
    /// A reserved allocation got its owner.
    Commit {
        id: AllocationId,
        owner: AllocationOwner,
    },
    /// The cards of an allocation are given whole: nothing in its containers keeps a limit.
    GivenWhole {
        id: AllocationId,
    },
    /// Another device plugin gave cards to a pod. The ledger records it even if the cards are not free.
    TakenWhole {
        pod: String,
        /// The pod's name for people.
        name: String,
        cards: Vec<CardUuid>,
    },
    /// An allocation is given back.
    Release {
        id: AllocationId,
    },
    /// A client asks to change the limits of an allocation, or what is guaranteed to it.
    Resize {
        id: AllocationId,
        asks: Vec<CardRequest>,
        /// The limits of elastic grants. One that is not named keeps a limit above its guarantee.
        ceilings: Vec<CardRequest>,
    },
    /// A client asks to put the processes of an allocation to sleep.
    Suspend {
        id: AllocationId,
    },
    /// The scheduler of a pod wants what is guaranteed to it for others. Its processes are to sleep.
    Reclaim {
        id: AllocationId,
    },
    /// The processes of an allocation are to sleep because they do not use the GPU.
    Idle {
        id: AllocationId,
    },
    /// The processes of an allocation must sleep because a guarantee is called in.
    CallIn {
        id: AllocationId,
    },
    /// Somebody calls memory in. Until it is served, others do not get what it waits for.
    CallOpened(GuaranteeCall),
    /// A call was given up.
    CallClosed(CallClaimant),
    /// All processes of an allocation sleep: it was suspended, or a resume was undone.
    Suspended {
        id: AllocationId,
    },
    /// A client asks to wake the processes of an allocation.
    Resume {
        id: AllocationId,
    },
    /// All processes of an allocation run: it was resumed, or a suspension was undone.
    Resumed {
        id: AllocationId,
    },
    /// The agent has lowered an allowance to this limit, which the processes do not exceed.
    Withdrawn {
        id: AllocationId,
        card: CardUuid,
        limit: Bytes,
    },
    /// Programs need more than their allowance.
    Burst(Vec<BurstRequest>),
    /// The owner of an allocation has ended.
    OwnerGone {
        id: AllocationId,
    },
    /// A process of an allocation has ended. The driver has freed its memory, so its overhead ends, too.
    ProcessGone {
        id: AllocationId,
        process: ProcessId,
    },
    /// The last process of an allocation has ended.
    Emptied {
        id: AllocationId,
    },
    /// The cards and accounts were sampled.
    Sampled(NodeSample),
    Tick,
}

/// What the agent must do, in this order.
#[expect(missing_docs, reason = "the types of the fields say what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerEffect {
    /// Create the account with its limits.
    OpenAccount(AllocationId),
    /// Write one limit into the account.
    SetLimit {
        /// The allocation that owns the account.
        id: AllocationId,
        card: CardUuid,
        limit: Bytes,
    },
    /// Write the guarantee and the limit of an elastic grant into the account.
    SetRange {
        /// The allocation that owns the account.
        id: AllocationId,
        card: CardUuid,
        range: BurstRange,
    },
    /// Write one overhead into the account.
    SetOverhead {
        /// The allocation that owns the account.
        id: AllocationId,
        card: CardUuid,
        overhead: Bytes,
    },
    /// Write into the account whether its programs must wait with what they charge.
    SetSuspended {
        /// The allocation that owns the account.
        id: AllocationId,
        is_suspended: bool,
    },
    CloseAccount(AllocationId),
    Kill(ProcessId),
    Notice(LedgerNotice),
    /// Write the checkpoint before the answer is sent.
    Save,
    /// The answer to a request.
    Answer(Result<AllocationId, AllocationRefusal>),
}

/// A change that is reported once.
#[expect(missing_docs, reason = "the types of the fields say what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerNotice {
    pub kind: NoticeKind,
    /// The allocation, with its name for people.
    pub allocation: Option<(AllocationId, String)>,
    pub card: Option<CardUuid>,
    pub process: Option<ProcessId>,
    /// What else is to be said, such as amounts; empty if nothing is.
    pub detail: String,
}

/// The kind of a notice.
#[expect(missing_docs, reason = "the types of the fields say what they are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoticeKind {
    /// An allocation was accepted.
    Allocated,
    /// It got its owner.
    Committed,
    Resized,
    /// Its processes sleep, and its memory is free for others.
    Suspended,
    /// Its processes run again.
    Resumed,
    /// Its processes sleep, because they did not use the GPU.
    Idle,
    /// They run again, because one of them called the driver.
    Called,
    /// It is to sleep when it is idle, and cannot.
    StaysAwake,
    /// It was released and waits for its last process to end.
    Draining,
    Released,
    /// It was not committed in time.
    Expired,
    /// A process uses a card without charging the account, and its allocation uses more than allowed.
    Bypassed,
    /// The processes of an allocation exceed its limit by more than their leeway.
    Overlimit,
    /// A process uses a card that its allocation was not granted.
    Ungranted,
    /// A process was killed for one of the three offences above.
    Killed,
    /// The eviction of its pod was requested for one of these offences.
    Evicted,
    /// The files of an account are gone or damaged. The agent sees its processes only through NVML.
    Damaged,
    CardFound,
    /// A card must not be allocated.
    CardUnhealthy,
    /// A card does not answer.
    CardLost,
    /// A card works again.
    CardHealthy,
}

/// Why a request was refused.
#[expect(missing_docs, reason = "the types of the fields say what they are")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationRefusal {
    /// It does not fit.
    #[error("{0}")]
    Shortfall(Shortfall),
    /// It names no card, no bytes, or one card twice.
    #[error("{0}")]
    Malformed(&'static str),
    /// This node has no such card.
    #[error("this node has no GPU {0}")]
    UnknownCard(CardUuid),
    /// The card cannot be allocated.
    #[error("{0} is not healthy")]
    Unhealthy(CardUuid),
    /// The card's memory size is unknown.
    #[error(
        "{0} does not report its memory size, so it cannot be shared until the agent is started with --card-memory"
    )]
    Sizeless(CardUuid),
    /// There is no such allocation.
    #[error("there is no allocation {0}")]
    UnknownAllocation(AllocationId),
    /// The same key was used for another request.
    #[error("idempotency key {0:?} belongs to an allocation with other shares")]
    KeyReused(String),
    /// The allocation has another owner already.
    #[error("allocation {0} is committed to another owner")]
    Committed(AllocationId),
    /// The allocation was released.
    #[error("allocation {0} was released and ends with its last process")]
    Draining(AllocationId),
    /// Its cards are given whole, so no limit is kept on them.
    #[error("allocation {0} has whole GPUs and cannot be resized")]
    Whole(AllocationId),
    /// A pod owns the allocation.
    #[error(
        "allocation {0} belongs to a pod; a client can suspend only programs of `apportion run`"
    )]
    OfPod(AllocationId),
    /// The allocation has no owner yet.
    #[error("allocation {0} has no process yet")]
    Uncommitted(AllocationId),
    /// The allocation is not running.
    #[error("allocation {0} is suspended; resume it first")]
    Suspended(AllocationId),
    /// The opposite is being done to the allocation.
    #[error("allocation {0} is being suspended or resumed; wait until that is done")]
    InTransition(AllocationId),
    /// The allocation sleeps for somebody else.
    #[error(
        "allocation {0} is suspended, because others need what it used above its guarantee; wait until it runs again"
    )]
    CalledIn(AllocationId),
    /// The programs of the allocation have nowhere to ask for more.
    #[error(
        "allocation {0} was made without a limit above its request, so its programs cannot ask for more than that; start it anew with a limit"
    )]
    Fixed(AllocationId),
    /// The limit is below the guarantee.
    #[error(
        "the limit of {limit} on {card} is below the {asked} that are asked for; a limit is at least the request"
    )]
    LimitBelowRequest {
        card: CardUuid,
        asked: Bytes,
        limit: Bytes,
    },
    /// No program can ever use that much of the card.
    #[error(
        "the limit of {limit} on {card} is above the {allocatable} that programs can get of it"
    )]
    LimitAboveCard {
        card: CardUuid,
        limit: Bytes,
        allocatable: Bytes,
    },
    /// The limits on the card would add up to more than the agent allows.
    #[error(
        "with a limit of {limit} the limits on {card} would add up to {sum}; this agent allows {bound} there, which is {factor} times its {allocatable}; ask for a lower limit, or start the agent with a larger --gpu-memory-overcommit"
    )]
    Overcommitted {
        card: CardUuid,
        limit: Bytes,
        sum: Bytes,
        bound: Bytes,
        factor: OvercommitFactor,
        allocatable: Bytes,
    },
    /// The allocation has no grant on the card.
    #[error("allocation {id} has no share of {card}")]
    NotGranted { id: AllocationId, card: CardUuid },
}
