//! The wire between a node's agent and everyone who talks to it: the messages of
//! `apportion/v1/agent.proto` as Rust types, and the way to an agent's Unix socket; and the part of the
//! kubelet's own contracts that the agent speaks.
//!
//! The generated code is committed, so building needs no protobuf compiler and a review sees what a
//! change of the contract does; a test regenerates it and compares.

#![forbid(unsafe_code)]

mod connect;
pub mod identity;

pub use connect::{AgentClient, channel, connect};

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

/// The kubelet's device plugin API.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the contract is the kubelet's"
)]
#[rustfmt::skip]
pub mod deviceplugin {
    include!("gen/deviceplugin/v1beta1.rs");
}

/// The kubelet's pod resources API.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the contract is the kubelet's"
)]
#[rustfmt::skip]
pub mod podresources {
    include!("gen/podresources/v1.rs");
}

/// The kubelet's pods API.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the contract is the kubelet's"
)]
#[rustfmt::skip]
pub mod pods {
    include!("gen/pods/v1alpha1.rs");
}

/// The container runtime interface.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the contract is the kubelet's"
)]
#[rustfmt::skip]
pub mod cri {
    include!("gen/cri/runtime.v1.rs");
}
