//! Turns Kubernetes objects into the cluster that the policy decides on.
//!
//! The same code serves files and a running cluster. What can't be understood becomes a warning about its object, and
//! the rest goes on.
#![forbid(unsafe_code)]

pub mod cards;
pub mod claims;
pub mod clock;
pub mod gpu_nodes;
pub mod inventory;
pub mod object_warnings;
pub mod pods;
pub mod snapshot;
pub mod usage_history;

pub mod admission;
pub mod requests;

pub mod occupancy;

mod capacity;
pub mod config_maps;
mod foreign_pods;
mod gang;
pub mod group_objects;
pub mod groups;
mod jobs;
mod namespaces;
mod nodes;
pub mod numa;
mod owners;
pub mod parsed_objects;
pub mod pod_affinity;
mod pod_group_terms;
mod queues;
mod selector;
pub mod shards;
pub mod volumes;
