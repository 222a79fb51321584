//! KAI's admission rules for pods, queues, pod groups and topologies.
//!
//! The rules, their order and their messages are KAI's, so that manifests for KAI are admitted, completed and refused
//! in the same way. A rule that KAI does not have is optional ([`strict`]), or it closes a gap through which a tenant
//! takes what it has not requested ([`immutable_fields`]).
//!
//! The crate is pure. It takes objects as the API server's JSON and returns the same JSON with the changes that a rule
//! made. Randomness and other objects that a rule needs are arguments. The webhook around it only speaks HTTP.
#![forbid(unsafe_code)]

mod admit;
pub mod config_map;
mod container_annotations;
mod containers;
pub mod devices;
pub mod gpu_amounts;
pub mod hami;
mod idle_time;
pub mod ignored;
pub mod immutable_fields;
pub mod limits;
pub mod names;
mod number;
mod pod;
pub mod pod_group;
pub mod queue;
mod refusal;
pub mod request;
pub mod resize;
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
pub use idle_time::idle_time;
pub use limits::RequestBelowLimit;
pub use pod::{
    Container, Metadata, Owner, Pod, ResourceList, Resources, Spec, Status, Variable,
    VariablesFrom, Volume,
};
pub use refusal::PodRefusal;
pub use request::ContainerGpuRequest;
pub use unsupported::{UnsupportedRequest, unmet};
