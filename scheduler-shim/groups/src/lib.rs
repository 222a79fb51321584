//! Derives which pod group a pod belongs to, and what that group asks for.
//!
//! A gang is scheduled whole or not at all, but nobody writes "gang" into a manifest: people write a PyTorchJob, a
//! JobSet, a RayCluster. This crate reads such an owner and derives the group: name, owner, how many pods must
//! start together, subgroups, priority class, preemptibility, queue, topology. The rules are those of KAI
//! Scheduler, so that manifests written for it behave alike.
//!
//! It is pure: no I/O, no clock. Owners are the JSON that the API server serves ([`ObjectView`]): they are kinds of
//! two dozen projects, and each rule reads three fields. Only the edge of this crate sees that JSON; the result is
//! typed ([`DerivedPodGroup`]). Objects that a rule must look up besides the owner are in an [`ObjectStore`].
//!
//! ## Adding a kind
//! Add one row to [`TABLE`]. If the kind needs more than "one group per owner, one pod is enough", the row names a
//! function in `kinds/`.
#![forbid(unsafe_code)]

mod defaults;
mod error;
mod group;
mod grouping;
mod inherit;
mod kinds;
mod lazy_object;
mod names;
mod object;
mod objects;
mod segments;
mod table;
mod workload;

pub use defaults::{KindDefault, KindDefaults};
pub use error::GroupingError;
pub use group::{
    DerivedPodGroup, DerivedSubGroup, DerivedTopologyConstraint, GroupPreemptibility, PodGroupOwner,
};
pub use grouping::{Grouping, group, group_by};
pub use object::ObjectView;
pub use objects::{LookupTrace, ObjectStore};
pub use table::{GroupingRule, OTHER, OwnerKindEntry, ReplicaRoles, TABLE, row_of};
pub use workload::{GroupingInput, GroupingSettings};

/// Single rules, by which `cargo xtask oracles` answers KAI's cases. No program calls them.
#[doc(hidden)]
pub mod kai_cases {
    pub use crate::kinds::grove::{PodReference, parse_pod_reference, parse_sub_group};
    pub use crate::kinds::lws::sub_groups as leader_worker_sub_groups;
    pub use crate::kinds::mpi::{launcher_exists, without_delayed_launcher};
    pub use crate::kinds::pods::is_spark;
    pub use crate::kinds::skip::inherit_from_skipped;
}
