//! Reasons: what was decided, who is where after it, and what keeps the others waiting.
//!
//! Everything here is a value with numbers. Its text is for people, its JSON for programs.

pub(crate) mod decided_cluster;
pub(crate) mod explain;
pub(crate) mod formatting;
pub(crate) mod report;
pub(crate) mod waiting;

mod unblock;
mod unschedulable;
