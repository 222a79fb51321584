//! The protocol between a node's agent and its clients: the messages of `apportion/v1/agent.proto` as Rust types, and
//! the connection to an agent's Unix socket. Also the kubelet's and the container runtime's APIs that the agent uses.
//!
//! The generated code is committed, so building needs no protobuf compiler, and a review sees the effect of a
//! contract change. A test regenerates it and compares.

#![forbid(unsafe_code)]

pub mod codec;
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

/// The kubelet's API for DRA drivers.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the contract is the kubelet's"
)]
#[rustfmt::skip]
pub mod dra {
    include!("gen/dra/k8s.io.kubelet.pkg.apis.dra.v1.rs");
}

/// The same as kubelets before 1.34 use it.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the contract is the kubelet's"
)]
#[rustfmt::skip]
pub mod dra_beta {
    include!("gen/dra/k8s.io.kubelet.pkg.apis.dra.v1beta1.rs");
}

/// How the kubelet finds plugins.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the contract is the kubelet's"
)]
#[rustfmt::skip]
pub mod pluginregistration {
    include!("gen/pluginregistration/pluginregistration.rs");
}
