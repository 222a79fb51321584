//! The words that every Apportion program shares, and nothing else.
//!
//! Two programs that must agree on something find it here: units, card ids, what a pod may ask for,
//! the one comparison of have and ask, the account pages through which the agent and a limited
//! program talk, and where on a machine everything lies. Nothing here does I/O except opening and
//! mapping the account pages. The crate works without the standard library (feature `std` off),
//! because the library that is preloaded into other people's programs is built on it.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod account;
pub mod capacity;
pub mod escape;
pub mod exit;
pub mod names;
pub mod place;
pub mod request;
pub mod units;
pub mod uuid;
pub mod workload;

pub use capacity::{CardCapacity, CardRequest, Holder, Shortfall, fits};
pub use escape::EscapedText;
pub use request::{GpuFraction, GpuRequest, RequestError, SHARE_UNIT, Share, whole_units};
pub use units::Bytes;
pub use uuid::CardUuid;
pub use workload::ContainerRef;
