//! A real Kubernetes on this machine: etcd, the API server, the controller manager, the scheduler,
//! containerd and one kubelet, on loopback, beside simulated cards.
//!
//! `cargo xtask cluster up` starts one for a person, the suites below `tests/` for a test. Everything of a
//! cluster derives from its [`ClusterFolder`]: ports are picked free, sockets, state and logs lie in it, node and
//! control groups carry its name. So several run beside each other, and [`down`] leaves nothing behind.
//! What is distributed by no registry is built from local files: the servers from Go modules
//! ([`binaries`]), the images from programs of this machine ([`image`]). Pods share the host's network.

#![forbid(unsafe_code)]

pub mod binaries;
pub mod image;
pub mod install;
pub mod managed;
pub mod nvidia;
pub mod operators;
pub mod programs;
pub mod release;
pub mod requirements;
pub mod stand_ins;

mod certificates;
mod cluster;
mod containerd;
mod down;
mod folder;
mod http;
mod interrupt;
mod kubeconfig;
mod kubelet;
mod leftovers;
mod mount_namespace;
mod node;
mod pods;
mod ports;
mod restart;
mod server;
mod servers;
mod snapshotter;
mod sysctls;
mod up;
mod wait;

pub use cluster::{ClusterState, LocalCluster};
pub use down::down;
pub use folder::ClusterFolder;
pub use leftovers::leftovers;
pub use up::{ClusterSpec, up};
pub use wait::eventually;
