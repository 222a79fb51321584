//! Decides what runs where, and what is evicted for it.
//!
//! Pure functions of the cluster and the time: no clock, no I/O, the same decisions for the same cluster in
//! any order. [`step`] is the whole policy; [`place`] is the part of it that one machine without queues
//! needs. Both only propose: the agent that owns a card decides, with the same
//! [`fits`](apportion_abi::fits).
//!
//! The rules are those of KAI Scheduler; `cargo xtask scenarios` and `cargo xtask oracles` compare the two.
//!
//! A run is a [`Session`]: a snapshot of the cluster, the state that changes, caches, and a record of what was
//! decided. The rules are functions over it, one module for each.
//!
//! # Where it differs from KAI
//! - Shares of a card are bytes, not hundredths: what adds up to a card fits a card, and is charged as one.
//! - A share goes to the fullest card with room in the whole cluster, not only on the node that is packed best
//!   ([`SharedCards`](cluster::SharedCardPreference) has KAI's way, too).
//! - The cards of a node may be known one by one, with several sizes and some unhealthy. Bytes are then charged by
//!   the card that they are on. A waiting pod that only larger cards can hold counts by the smallest of those.
//! - A search for victims ends after a counted effort, not after a time. Counting rules out what can't succeed.
//! - A pod that was moved in a step frees its new place at once when it is moved again.
//! - Nothing is evicted in vain: a plan is tried one step ahead, and a step does not undo its own decisions.
//!   Victims get back as many of their pods as there is room for, not one per job.
//! - A cluster whose nodes are all in one narrow domain can still hold a job that requires a wider one.
//! - Equal scores go by name: the same cluster gives the same plan, in whatever order it is described.
#![forbid(unsafe_code)]

pub mod amounts;
pub mod cluster;
pub mod divide;
pub mod min_runtime;
pub mod queue_order;
pub mod reclaimable;
pub mod share;
pub mod tree;
pub mod usage;

mod actions;
mod affinity_filter;
mod allocate;
mod caches;
mod capacity_bound;
mod card_naming;
mod card_placement;
mod charges;
mod choose;
mod claim_devices;
mod claims;
mod entitlement;
mod evict_order;
mod fit;
mod fragmentation;
mod gang;
mod inter_pod_affinity;
mod job_order;
mod job_state;
mod jobs_by_queue;
mod lookahead;
mod node_resources;
mod numa;
mod plan_record;
mod queries;
mod ranking;
mod requests;
mod resize;
mod resource_vector;
mod scenario;
mod session;
mod snapshot;
mod solve;
mod state;
mod step;
mod task_placement;
mod task_state;
mod topology;
mod topology_spread;
mod transitions;
mod victim_nodes;
mod victim_rules;

pub use affinity_filter::AffinityRefusal;
pub use card_placement::{CandidateCard, CardPlacement, PlacementRefusal, place};
pub use charges::CardCharge;
pub use claims::{ClaimRefusal, MOST_CLAIM_CONSUMERS};
pub use cluster::Cluster;
pub use entitlement::Entitlement;
pub use lookahead::{plan, plan_observed};
pub use node_resources::NodeResources;
pub use plan_record::HeldBackJob;
pub use resize::{QueueBound, QueueDemand, QueueShortfall, queue_shortfall};
pub use session::Session;
pub use step::action::Action;
pub use step::{Decision, TaskOutcome, step};
pub use task_placement::{NewAllocation, TaskPlacement};
