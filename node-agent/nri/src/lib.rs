//! The second lock on a node's GPUs: a plugin of the container runtime that is asked before a container
//! is created, and refuses one that reaches a GPU without a grant or with another's.
//!
//! It speaks the runtime's node resource interface (NRI). A runtime goes on without a plugin that is
//! slow or gone, so nothing may depend on it; what it adds is the pod's identity in the runtime's own
//! words, a veto on the ways around the device plugin, and, whenever it connects, the list of everything
//! that runs.

#![forbid(unsafe_code)]

mod client;
mod container;
pub mod frame;
mod session;
mod verdict;
pub mod wire;

pub use client::{NriClientConfig, run};
pub use container::NriContainer;
pub use session::{NriEvent, NriSession, NriSessionError, NriStage, NriStep, WISHES};
pub use verdict::{
    ContainerVerdict, GrantHolder, Grants, VerdictMode, VerdictReason, VerdictRules, judge,
};
