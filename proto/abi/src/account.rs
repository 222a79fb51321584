//! The account: files through which the agent and one limited container (or program) communicate.
//!
//! The agent writes `limits`, and the program maps it read-only. The program writes `usage`, and the agent reads it.
//! Both are fixed layouts of atomics (`layout`). So either side can be killed at any instruction without leaving a
//! lock behind, and a program keeps its limit while no agent runs.
//!
//! # Decision: no stored total
//! The design speaks of a total for each card that a charge compare-exchanges. But if a process is killed between
//! publishing its intent and that exchange, or between the exchange and recording it, nobody can tell whether the
//! total includes the intent. A repair then either leaks memory or gives it away twice. So there is no total. Each
//! process records its claim in its own slot only. A charge first adds to its own slot, then sums all slots, and
//! takes its claim back if the sum is above the limit. Of two racing charges at least one sees the other, so both
//! cannot pass. A process that dies anywhere leaves a slot that counts at least what it held, until someone who knows
//! that it is dead retires that slot, once. The sum reads one cache line for each slot up to the highest one ever
//! used.
//!
//! # What counts
//! `used = Σ claimed + overhead`. `claimed` is what programs asked for, plus the reserves for their contexts. Memory
//! that several processes hold counts once (`shares`). `overhead` is what the driver uses beyond that, as measured by
//! the agent.
//!
//! An elastic share has a third file, `burst`, in which programs ask for a larger allowance. No charge reads it before it
//! is refused.
//!
//! The code that charges is not generic, and runs unchanged under `loom` (`--cfg loom`, see `tests/loom.rs`).

mod api;
#[cfg(not(loom))]
mod burst;
mod calls;
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
#[cfg(not(loom))]
pub use burst::{BurstMap, BurstTicket, CardBurst, NewBurst};
pub use calls::{CallWords, SharedCallWords};
pub use layout::{CardLimit, CardUse, LAYOUT_VERSION, MAX_CARDS, SLOTS, SlotCard, SlotHead};
pub use limits::LimitSnapshot;
#[cfg(not(loom))]
pub use map::{LimitsMap, NewCard, ShareSuspension, UsageMap};
#[cfg(not(loom))]
pub use mapping::AccountOpenError;
pub use shared_memory::{JoinOutcome, Share};
pub use slot::{ProcessRegistration, RegisteredProcess, SlotOwner};
pub use usage::{AccountUsage, CardCharges, ChargeOutcome};
