//! The wire between a node's agent and everyone who talks to it: the messages of
//! `apportion/v1/agent.proto` as Rust types, and the way to an agent's Unix socket.
//!
//! The generated code is committed, so building needs no protobuf compiler and a review sees what a
//! change of the contract does; a test regenerates it and compares.

#![forbid(unsafe_code)]

mod connect;

pub use connect::{AgentClient, connect};

/// The messages and services of `apportion.v1`.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; what can be documented is documented in the contract's file"
)]
#[rustfmt::skip]
pub mod v1 {
    include!("gen/apportion.v1.rs");
}
