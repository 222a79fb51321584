//! Who may come in, and with what: KAI's admission rules for pods, queues, pod groups and topologies.
//!
//! The rules, their order and their sentences are KAI's, so that manifests written for it are taken, completed and
//! refused alike. What KAI has no rule for is added behind a switch ([`strict`]) or where KAI's silence lets a
//! tenant take what it has not asked for ([`frozen`]).
//!
//! The crate is pure. Objects come in as the API server's JSON and go out as the same JSON with what a rule changed;
//! randomness and other objects that a rule must see are arguments. The webhook around it only speaks HTTP.
#![forbid(unsafe_code)]

mod admit;
pub mod amounts;
pub mod config_map;
mod containers;
mod counted;
pub mod devices;
pub mod frozen;
pub mod hami;
pub mod ignored;
mod keys;
pub mod limits;
pub mod names;
mod number;
mod pod;
pub mod pod_group;
mod quantity;
pub mod queue;
mod refusal;
pub mod request;
pub mod strict;
pub mod topology;
mod wishes;

pub use admit::{
    Delivery, Settings, limit_memory, mutate, refer, set_runtime_class, validate, validate_update,
    warnings,
};
pub use containers::{
    List, Place, fraction_container, is_shared, shared_containers, without_resource,
};
pub use limits::RequestBelowLimit;
pub use pod::{
    Amounts, Container, Metadata, Owner, Pod, Resources, Spec, Status, Variable, VariablesFrom,
    Volume,
};
pub use quantity::{NotAQuantity, Quantity};
pub use refusal::Refusal;
pub use request::Asked;
pub use wishes::{Wish, unmet};
