//! Values of Kubernetes objects that every program must read alike: quantities, durations and timestamps.
//!
//! The API server refuses most texts that are not such a value. A file that `simulate` reads has passed no API server,
//! and an annotation is never checked there. So the readers follow the grammar of Kubernetes exactly, and tell "not
//! there" from "cannot be read".
//!
//! It is pure: no I/O, no clock. The names of annotations, labels and resources are in `apportion_abi::names`.
#![forbid(unsafe_code)]

mod duration;
mod quantity;
mod timestamp;

pub use duration::{not_a_duration, parse_duration, parse_long_duration, show_duration};
pub use quantity::{ParseQuantityError, Quantity};
pub use timestamp::{parse_timestamp, since_epoch};
