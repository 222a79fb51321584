//! Allocates resource claims: the devices of ResourceSlices, by the rules of Kubernetes (`resource.k8s.io/v1`).
//!
//! [`allocate`](allocate::allocate) chooses devices for the claims of a pod on a node. A [`DeviceInventory`] has the
//! slices and classes, [`DeviceUsage`] what other claims have. What cannot be allocated is refused with an
//! [`AllocationRefusal`], which says what became of the devices.
//!
//! It is pure: no I/O, no clock, no randomness.
#![forbid(unsafe_code)]

pub mod allocate;
pub mod amount;
pub mod attribute;
pub mod binding;
pub mod objects;

mod capacity;
mod constraint;
mod counters;
mod device_part;
mod device_use;
mod expression;
mod extended;
mod inventory;
mod node;
mod pool;
mod refusal;
mod request_plan;

pub use device_use::DeviceUsage;
pub use extended::{ContainerRequests, ExtendedRequest, ExtendedRequests, RequestMapping};
pub use inventory::{DeviceInventory, IMPLICIT_RESOURCE};
pub use node::NodeView;
pub use pool::PoolFault;
pub use refusal::{AllocationRefusal, DeviceShortage, DeviceTally};
