//! The hooks, by kind of memory. Each takes the driver's own function first, then the caller's arguments.
//!
//! Hooks that take memory find the card, charge the most that the call can cost, call the driver, take off what it
//! did not use, and record the rest. Hooks that free memory work in the opposite order: they remove the record, call
//! the driver, and take the charge off, or restore the record if the driver refused. The record goes first because
//! the driver may give the same address to another thread as soon as it is free.

pub(crate) mod array;
pub(crate) mod bindings;
mod charge;
pub(crate) mod conditional;
pub(crate) mod context;
pub(crate) mod context_limit;
mod deferred_free;
pub(crate) mod exported_descriptors;
pub(crate) mod graph;
pub(crate) mod kernel_node;
pub(crate) mod launch;
pub(crate) mod linear;
mod local_memory;
pub(crate) mod module;
mod physical_memory;
pub(crate) mod pool;
mod pool_settlement;
pub(crate) mod processes;
pub(crate) mod query;
pub(crate) mod resolve;
mod shared_holds;
pub(crate) mod shared_memory;
pub(crate) mod vmm;
