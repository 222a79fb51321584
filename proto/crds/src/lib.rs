//! The custom resources that Apportion reads or writes, as Rust types from which the manifests are generated.
//!
//! Each file is one kind. A type here describes what the API server stores, and nothing of its use. A manifest is
//! generated and committed where it is installed from; a test compares it with its type.
#![forbid(unsafe_code)]

mod gpu_node;
pub mod kai;
mod pod_group;
mod queue;
mod topology;

pub use gpu_node::{
    CardHealth, GpuCard, GpuHolder, GpuNode, GpuNodeSpec, GpuNodeStatus, GpuTotals,
    LimitEnforcement,
};
pub use kai::{Amounts, ConditionStatus};
pub use pod_group::{
    PodGroup, PodGroupCondition, PodGroupSpec, PodGroupStatus, Preemptibility, QuotaDetails,
    ResourcesStatus, SchedulingCondition, SubGroup, TopologyConstraint, UnschedulableDetails,
    UnschedulableExplanation,
};
pub use queue::{Queue, QueueCondition, QueueResource, QueueResources, QueueSpec, QueueStatus};
pub use topology::{Topology, TopologyLevel, TopologySpec};
