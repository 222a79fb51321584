//! What the hooks do, by the kind of memory. Each takes the driver's own function first, then the
//! caller's arguments.
//!
//! All that take memory go the same way: find the card, charge the most that the call can cost, ask the
//! driver, give back what it did not take, enter the rest in the books. All that free go the other way
//! round: take the entry out of the books, ask the driver, give the charge back, or put the entry back
//! if the driver refused. The entry goes first because the driver may hand the same address to another
//! thread the moment it is free.

pub(crate) mod array;
pub(crate) mod bindings;
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
pub(crate) mod pool;
pub(crate) mod processes;
pub(crate) mod query;
pub(crate) mod resolve;
pub(crate) mod shared_memory;
pub(crate) mod vmm;
