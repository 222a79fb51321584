//! A kubelet as far as a device plugin can tell: it takes registrations, hands out devices, asks before
//! each start of a container, lists who holds what and keeps its checkpoint, in the real one's order and
//! over real sockets. It runs no container; a test plays the runtime with what it finds on disk.
//!
//! The real kubelet is in the tests on a cluster. This one is for what cannot be done there a thousand
//! times in a minute, or not at all on purpose: restarts at the wrong moment, answers that come late.

#![forbid(unsafe_code)]

mod kubelet;
mod pods;
mod runtime;
mod services;
mod state;
mod whole;

pub use kubelet::FakeKubelet;
pub use pods::PodsApi;
pub use runtime::Runtime;
pub use state::PodOf;
pub use whole::WholeCardRequest;
