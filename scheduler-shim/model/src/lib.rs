//! Turns Kubernetes objects into the cluster that the policy decides on.
//!
//! The same code serves files and a running cluster. What can't be understood becomes a warning about its object, and
//! the rest goes on.
#![forbid(unsafe_code)]

pub mod admission;
pub mod burst_terms;
pub mod cached_group;
pub mod cards;
pub mod change_counters;
pub mod claim_store;
pub mod claims;
pub mod clock;
pub mod config_maps;
pub mod extended_requests;
pub mod extended_resources;
pub mod gpu_nodes;
pub mod group_objects;
pub mod groups;
pub mod inventory;
pub mod nodes;
pub mod numa;
pub mod object_kinds;
pub mod object_warnings;
pub mod occupancy;
pub mod parsed_objects;
pub mod pod_affinity;
pub mod pod_occupancy;
pub mod pod_zones;
pub mod pods;
pub mod requests;
pub mod resize;
pub mod shards;
pub mod snapshot;
pub mod usage_history;
pub mod volumes;

mod capacity;
mod foreign_pods;
mod gang;
mod jobs;
mod labels;
mod namespaces;
mod node_requirements;
mod owners;
mod pod_group_terms;
pub mod queues;
mod selector;
mod tasks;
