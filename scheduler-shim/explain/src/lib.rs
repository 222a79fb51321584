//! Reasons: what was decided, who is where after it, and what keeps the others waiting.
//!
//! Everything here is a value with numbers. Its text is for people, its JSON for programs.
#![forbid(unsafe_code)]

pub mod decided_cluster;
pub mod explain;
pub mod formatting;
pub mod pod_explanation;
pub mod queue_view;
pub mod report;
pub mod waiting;

mod unblock;
mod unmet_requirement;
mod unschedulable;
