//! What runs where, and who has to leave for it.
//!
//! Pure functions of the cluster and the time: no clock, no I/O, the same decisions for the same cluster in
//! any order. [`step`] is the whole policy; [`place`] is the part of it that one machine without queues
//! needs. Both only propose: the agent that owns a card decides, with the same
//! [`fits`](apportion_abi::fits).
//!
//! The rules are those of KAI Scheduler, in bytes instead of hundredths of a card.
#![forbid(unsafe_code)]

pub mod amounts;
pub mod cluster;
pub mod divide;
pub mod min_runtime;
pub mod queue_order;
pub mod reclaimable;
pub mod share;
pub mod tree;

mod actions;
mod ahead;
mod allocate;
mod choose;
mod evict_order;
mod fit;
mod gang;
mod line;
mod numa;
mod place;
mod pool;
mod scenario;
mod session;
mod solve;
mod step;
mod stock;
mod topology;

pub use ahead::plan;
pub use cluster::Cluster;
pub use place::{Card, Placement, Refusal, place};
pub use session::Session;
pub use step::{Action, Decision, Outcome, Place, step};
pub use stock::Stock;
