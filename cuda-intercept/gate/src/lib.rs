//! The accounting of one process: what it holds on which card, and what each call costs or gives back.
//!
//! This is pure bookkeeping, without a driver, an account or a lock. The hooks report what the driver did, and learn
//! how many bytes to charge or uncharge. Each kind of memory has its own file, because each is counted differently.
//! Contexts count a reserve each, with what is loaded into them, what is set for them and the local memory of their
//! kernels. Linear memory and arrays count by the driver's blocks, virtual memory handles by references, and
//! stream-ordered pools by what they reserve.
//!
//! Cards are indexes in the account. Memory on a card that is not in the account is not recorded. A key that is not
//! found is an answer (`None`), never an error: the driver decides what an unknown pointer means.
//!
//! Nothing here panics. Without memory for an entry, an allocation is not recorded, and stays charged for as long as
//! the process lives.
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

/// A card, by its index in the account.
pub type Card = usize;
