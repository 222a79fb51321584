//! What the agent reports: the view that all readers share, metrics, log lines, events, and the objects of the API
//! server.
//!
//! Nothing here changes anything of the agent.

pub(crate) mod call_stats;
pub(crate) mod idle_stats;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod notice;
pub(crate) mod publish;
mod suspension;
pub(crate) mod suspension_stats;
pub(crate) mod view;
