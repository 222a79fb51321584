//! Who may come in, and with what: KAI's admission rules for pods, queues, pod groups and topologies.
//!
//! The rules, their order and their sentences are KAI's, so that manifests written for it are taken, completed and
//! refused alike. What KAI has no rule for is added behind a switch ([`strict`]) or where KAI's silence lets a
//! tenant take what it has not asked for ([`immutable_fields`]).
//!
//! The crate is pure. Objects come in as the API server's JSON and go out as the same JSON with what a rule changed;
//! randomness and other objects that a rule must see are arguments. The webhook around it only speaks HTTP.
#![forbid(unsafe_code)]

mod admit;
pub mod config_map;
mod container_annotations;
mod containers;
pub mod devices;
pub mod gpu_amounts;
pub mod hami;
pub mod ignored;
pub mod immutable_fields;
pub mod limits;
pub mod names;
mod number;
mod pod;
pub mod pod_group;
mod quantity;
pub mod queue;
mod refusal;
pub mod request;
mod share_resources;
pub mod strict;
pub mod topology;
mod unsupported;

pub use admit::{
    AdmissionSettings, GpuDelivery, limit_memory, mutate, refer, set_runtime_class, validate,
    validate_update, warnings,
};
pub use containers::{
    ContainerIndex, ContainerList, fraction_container, is_shared, shared_containers,
    without_resource,
};
pub use limits::RequestBelowLimit;
pub use pod::{
    Container, Metadata, Owner, Pod, ResourceList, Resources, Spec, Status, Variable,
    VariablesFrom, Volume,
};
pub use quantity::{ParseQuantityError, Quantity};
pub use refusal::PodRefusal;
pub use request::ContainerGpuRequest;
pub use unsupported::{UnsupportedRequest, unmet};
