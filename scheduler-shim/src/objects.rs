//! Turns Kubernetes objects into the cluster that the policy decides on.
//!
//! The same code serves files and a running cluster. What can't be understood becomes a warning about its object, and
//! the rest goes on.

pub(crate) mod cards;
pub(crate) mod claims;
pub(crate) mod clock;
pub(crate) mod gpu_nodes;
pub(crate) mod inventory;
pub(crate) mod object_warnings;
pub(crate) mod pods;
pub(crate) mod snapshot;
pub(crate) mod usage_history;

pub(crate) mod admission;
pub(crate) mod requests;

pub(crate) mod occupancy;

mod capacity;
pub(crate) mod config_maps;
mod foreign_pods;
mod gang;
pub(crate) mod group_objects;
pub(crate) mod groups;
mod jobs;
mod namespaces;
mod nodes;
pub(crate) mod numa;
mod owners;
pub(crate) mod parsed_objects;
pub(crate) mod pod_affinity;
mod pod_group_terms;
mod queues;
mod selector;
pub(crate) mod shards;
pub(crate) mod volumes;
