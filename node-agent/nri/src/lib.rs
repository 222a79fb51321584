//! An NRI plugin as a second check on a node's GPUs. The container runtime asks it before it creates a container,
//! and it refuses a container that reaches a GPU without a grant or with another container's grant.
//!
//! NRI is the runtime's Node Resource Interface. A runtime goes on without a plugin that is slow or gone, so nothing
//! may depend on it. It adds three things: the pod's identity from the runtime, a veto on ways around the device
//! plugin, and, at each connect, the list of all running containers.

#![forbid(unsafe_code)]

mod client;
mod container;
pub mod frame;
mod session;
mod verdict;
pub mod wire;

pub use client::{NriClientConfig, NriReceivers, StartingContainer, run};
pub use container::NriContainer;
pub use session::{NriEvent, NriSession, NriSessionError, NriStage, NriStep, WISHES};
pub use verdict::{
    ContainerVerdict, GrantHolder, Grants, VerdictMode, VerdictReason, VerdictRules, judge,
};
