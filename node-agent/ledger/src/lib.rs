//! The node's ledger of allocations: who holds how much of which card, and since when.
//!
//! Pure: [`Ledger::apply`] takes the time and a [`LedgerEvent`] and returns the [`LedgerEffect`]s that the agent
//! must perform. There is no I/O, no clock and no randomness here, so tests of the accounting need no process.
//!
//! # The invariant
//!
//! A grant *holds* its limit (an elastic one its present allowance, see `burst`), or its use where that is higher (after a shrink, or if a process bypasses its limit).
//! An allocation is accepted only if it fits beside everything that is held and beside the memory of processes
//! without an allocation. So the limits on a card never sum to more than its allocatable memory. The ledger cannot
//! prevent that outside processes take memory later. Then it gives out less; it does not promise more.

#![forbid(unsafe_code)]

mod admit;
mod allocation;
mod burst;
mod burst_request;
mod call_request;
mod card;
mod claim_offer;
mod estimate;
mod event;
mod fault;
mod guarantee_call;
mod guarantee_loans;
mod ids;
mod ledger;
mod lifecycle;
mod offence;
mod reconcile;
mod resize;
mod sample;
mod slots;
mod suspension;
mod time;
mod topology;
mod whole;

pub use allocation::{
    Allocation, AllocationOwner, AllocationPhase, CardGrant, ClaimOwner, LimitEnforcement,
    SuspensionCause, SuspensionPhase,
};

pub use burst_request::{BurstRange, BurstRequest};
pub use call_request::{CallClaimant, GuaranteeCall};
pub use card::{Health, LedgerCard};
pub use claim_offer::ClaimOffer;
pub use event::{
    AllocationRefusal, LedgerEffect, LedgerEvent, LedgerNotice, NoticeKind, OffenderPolicy,
    PlacementProposal,
};
pub use fault::XidSeverity;
pub use guarantee_call::{BurstHolding, CallObstacle, CallStep, CallTerms};
pub use ids::{AllocationId, ProcessId};
pub use ledger::Ledger;
pub use sample::{AccountSample, CardSample, ClaimWindow, NodeSample, ProcessSample};
pub use slots::{SlotEffect, SlotEvent, SlotId, SlotRefusal, SlotState, SlotTable};
pub use time::EpochMillis;
pub use topology::{CardCloseness, GpuTopology};
pub use whole::{
    WholeCardId, WholeCardOffer, WholeCardPlan, WholeCardRefusal, WholeCardTable, WholeCardUpdate,
};
