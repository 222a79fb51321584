//! Processes of this machine: who they are, which allocation they belong to, and when they end.
//!
//! It reads the kernel only. What a process may hold is the business of the ledger.

pub(crate) mod exits;
pub(crate) mod members;
pub(crate) mod namespace;
pub(crate) mod procfs;
pub(crate) mod threads;
