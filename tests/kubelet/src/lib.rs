//! A kubelet as a device plugin sees it. It accepts registrations, hands out devices, calls the plugin before each
//! container starts, lists which container has which device, and writes its checkpoint. It does so in the real one's
//! order and over real sockets. It runs no container: the test acts as the runtime and uses the files on disk.
//!
//! The cluster tests use the real kubelet. This one is for tests that need a thousand pods a minute, or events that the
//! real one cannot produce on purpose: restarts at the wrong moment, late answers.

#![forbid(unsafe_code)]

mod api;
mod claims;
mod fake_node;
mod kubelet;
mod pods;
mod runtime;
mod services;
mod state;
mod whole;

pub use api::ApiServer;
pub use fake_node::{FakeNode, mounted, of_scheduler, pod_of};
pub use kubelet::FakeKubelet;
pub use pods::PodsApi;
pub use runtime::Runtime;
pub use state::PodOf;
pub use whole::WholeCardRequest;
