//! A real Kubernetes on this machine: etcd, the API server, the controller manager, the scheduler, containerd and one
//! kubelet, on loopback, with simulated cards.
//!
//! `cargo xtask cluster up` starts one for a person, the suites below `tests/` use one in tests. Everything of a
//! cluster derives from its [`ClusterFolder`]: sockets, state and logs are in it, and node and control groups have its
//! name. Ports are picked from the free ones. So several clusters run side by side, and [`down`] leaves nothing behind.
//! What no registry distributes is built locally: the servers from Go modules ([`binaries`]), the images from programs
//! of this machine ([`image`]). Pods share the host's network.

#![forbid(unsafe_code)]

pub mod api_proxy;
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
pub mod virtual_cluster;

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
