//! The account: two files through which the agent and one limited container (or program) talk.
//!
//! `limits` is written by the agent and mapped read-only by the program; `usage` is written by the
//! program and read by the agent. Both are fixed layouts of atomics (`layout`), so either side can
//! be killed at any instruction without leaving a lock behind, and a program goes on under its limit
//! while no agent runs.
//!
//! # Decision: no stored total
//! The design speaks of a total per card that a charge compare-exchanges. A process killed between
//! publishing its intent and that exchange, or between the exchange and recording it, leaves a total
//! of which nobody can say whether it holds the intent; whoever repairs it either leaks memory or
//! gives it away twice. So there is no total. What each process has claimed stands in its own slot
//! only, and a charge works the other way round: it first adds to its own slot, then adds up all
//! slots, and takes its claim back if the sum is above the limit. Of two racing charges at least one
//! sees the other, so both cannot pass; and a process that dies anywhere leaves a slot that counts at
//! least what it held, until someone who knows it dead retires that slot, once. The sum costs a read of
//! one cache line per process that ever used the account at the same time.
//!
//! # What counts
//! `used = Σ claimed + overhead`. `claimed` is what programs asked for, and the reserve for their
//! contexts; memory that several processes hold counts once (`shares`); `overhead` is what the driver was seen to use beyond that, measured by the agent.
//!
//! The code that charges is generic over nothing and runs unchanged under `loom`
//! (`--cfg loom`, see `tests/loom.rs`).

mod api;
#[cfg(not(loom))]
mod guard;
mod layout;
mod limits;
#[cfg(not(loom))]
mod map;
#[cfg(not(loom))]
mod mapping;
mod shared_memory;
mod slot;
mod usage;

pub use api::ApiFamily;
pub use layout::{CardLimit, CardUse, LAYOUT_VERSION, MAX_CARDS, SLOTS, SlotCard, SlotHead};
pub use limits::LimitSnapshot;
#[cfg(not(loom))]
pub use map::{LimitsMap, NewCard, UsageMap};
#[cfg(not(loom))]
pub use mapping::AccountOpenError;
pub use shared_memory::{JoinOutcome, Share};
pub use slot::{ProcessRegistration, RegisteredProcess, SlotOwner};
pub use usage::{AccountUsage, CardCharges, ChargeOutcome};
