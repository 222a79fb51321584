//! The custom resources that we share with a cluster: what their authors write and what we publish, as
//! types from which the manifests are made.
//!
//! One file is one kind. A type here says what the API server stores and nothing of what is done with
//! it; a manifest is generated, committed where it is installed from, and held against its type by a
//! test.
#![forbid(unsafe_code)]

mod gpu_node;
pub mod kai;
mod pod_group;
mod queue;
mod topology;

pub use gpu_node::{
    CardHealth, GpuCard, GpuHolder, GpuNode, GpuNodeSpec, GpuNodeStatus, GpuTotals,
};
pub use kai::{Amounts, ConditionStatus};
pub use pod_group::{
    PodGroup, PodGroupCondition, PodGroupSpec, PodGroupStatus, Preemptibility, QuotaDetails,
    ResourcesStatus, SchedulingCondition, SubGroup, TopologyConstraint, UnschedulableDetails,
    UnschedulableExplanation,
};
pub use queue::{Queue, QueueCondition, QueueResource, QueueResources, QueueSpec, QueueStatus};
pub use topology::{Topology, TopologyLevel, TopologySpec};
