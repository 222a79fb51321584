//! The definitions that every Apportion program shares, and nothing else.
//!
//! What two programs must agree on is here: units, card ids, what a pod may request, the comparison of requests and
//! capacity, the account pages between the agent and a limited program, and the paths on a machine. Nothing here does
//! I/O except opening and mapping the account pages. The crate works without the standard library (feature `std`
//! off), because the library that is preloaded into other people's programs is built on it.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod account;
pub mod burst_terms;
pub mod capacity;
pub mod escape;
pub mod exit;
pub mod names;
pub mod overcommit;
pub mod paths;
pub mod request;
pub mod units;
pub mod uuid;
pub mod workload;

pub use burst_terms::{BurstTerms, BurstWeight, NotABurstWeight};
pub use capacity::{BurstHolders, CardCapacity, CardRequest, Holder, Shortfall, fits};
pub use escape::EscapedText;
pub use overcommit::OvercommitFactor;
pub use request::{GpuFraction, GpuRequest, RequestError, SHARE_UNIT, Share, whole_units};
pub use units::Bytes;
pub use uuid::CardUuid;
pub use workload::ContainerRef;
