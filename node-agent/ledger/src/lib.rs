//! The node's book of allocations: who holds how much of which card, and since when.
//!
//! Pure: [`Ledger::apply`] takes the time and an [`LedgerEvent`] and returns the [`LedgerEffect`]s that the agent
//! must perform. There is no I/O, no clock and no randomness here, so that everything that can be
//! wrong about giving memory away is tested without a process.
//!
//! # The invariant
//!
//! What is *held* of a card is the limit of each of its grants, or more where a grant uses more than
//! its limit (after a shrink, or by a process that bypasses its limit). An allocation is accepted only
//! if it fits beside everything that is held and beside the memory of processes that have no
//! allocation. So the limits of a card never sum to more than its allocatable memory. What others take
//! from outside later cannot be prevented here; it makes the card give less, not promise more.

#![forbid(unsafe_code)]

mod admit;
mod allocation;
mod card;
mod estimate;
mod event;
mod fault;
mod ledger;
mod lifecycle;
mod reconcile;
mod sample;
mod slots;
mod topology;
mod whole;

pub use allocation::{
    Allocation, AllocationId, AllocationOwner, AllocationPhase, CardGrant, LimitEnforcement,
    ProcessId,
};
pub use card::{Health, LedgerCard};
pub use event::{
    AllocationRefusal, EpochMillis, LedgerEffect, LedgerEvent, LedgerNotice, NoticeKind,
    OffenderPolicy, PlacementProposal,
};
pub use fault::XidSeverity;
pub use ledger::Ledger;
pub use sample::{AccountSample, CardSample, ClaimWindow, NodeSample, ProcessSample};
pub use slots::{SlotEffect, SlotEvent, SlotId, SlotRefusal, SlotState, SlotTable};
pub use topology::{CardCloseness, GpuTopology};
pub use whole::{
    WholeCardId, WholeCardOffer, WholeCardPlan, WholeCardRefusal, WholeCardTable, WholeCardUpdate,
};
