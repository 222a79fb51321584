//! The books of one process: what it holds on which card, and what each call costs or gives back.
//!
//! Pure bookkeeping, with no driver, no account and no lock in it: the hooks tell it what the driver
//! did and learn how many bytes to claim or give back. Each kind of holding is in a file of its own,
//! because each is counted differently: contexts (a reserve each) with what is loaded into them, what is
//! set for them and what the threads of their kernels need, linear memory and arrays (by the driver's
//! blocks), virtual memory handles (by reference count) and stream-ordered pools (by what is reserved).
//!
//! Cards are positions in the account. A holding on a card that the account does not name is not
//! entered, and a key that is not found is an answer (`None`), never an error: the driver decides what
//! an unknown pointer is.
//!
//! Nothing here panics; where memory for an entry cannot be had the holding is not entered, which
//! leaves it charged for as long as the process lives.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod arrays;
mod bindings;
mod context_settings;
mod contexts;
mod deferred_frees;
mod descriptors;
mod fallible_map;
mod graphs;
mod handles;
pub mod image;
mod linear;
mod loaded_images;
mod pools;
mod process_allocations;
mod shared_memory;

pub use arrays::{ArrayAllocation, RemovedArray, format_bytes};
pub use bindings::{BindingHolder, BindingRegion};
pub use context_settings::{ContextSettings, LocalMemoryFit, LocalMemoryGrowth, thread_bytes};
pub use contexts::{ContextId, ContextReserve, EndingContext};
pub use deferred_frees::{DeferredFree, DeferredFrees};
pub use descriptors::{ExportedDescriptor, ExportedDescriptors, Inode};
pub use graphs::{
    ConditionalBodies, ConditionalNodes, GraphFootprint, GraphLaunch, GraphTable, InFlightLaunches,
    device_of_graphs, graph_pool,
};
pub use handles::{DroppedReference, PendingRelease, PendingUnmap, PhysicalId, PhysicalName};
pub use linear::{BLOCK, RemovedLinear, worst_case};
pub use loaded_images::{LoadedImages, LoadedModule};
pub use pools::{
    EndingPool, GROWTH, PoolGrowth, PoolSettlement, PoolTable, RemovedPooled, worst_growth,
};
pub use process_allocations::{FreeTarget, ProcessAllocations};
pub use shared_memory::{HeldMemory, Hold, SharedMemoryTable};

/// A card by its position in the account.
pub type Card = usize;
