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
mod books;
mod contexts;
mod descriptors;
mod graphs;
mod handles;
mod holds;
pub mod image;
mod late;
mod linear;
mod loads;
mod map;
mod pools;
mod settings;
mod shares;

pub use arrays::{Array, TakenArray, format_bytes};
pub use books::{Books, Held};
pub use contexts::{ContextId, Ended, Reserve};
pub use descriptors::{Descriptor, Descriptors, Inode};
pub use graphs::{
    Bodies, Conditionals, Flight, Flights, Graphs, Need, device_of_graphs, graph_pool,
};
pub use handles::{Dropped, Named, PhysicalId, Released, Unmapped};
pub use holds::{Holder, Place};
pub use late::{Free, LateFrees};
pub use linear::{BLOCK, Taken, worst_case};
pub use loads::{Loads, Module};
pub use pools::{Doomed, GROWTH, Growth, Pooled, Pools, Settled, worst_growth};
pub use settings::{Grown, Room, Settings, thread_bytes};
pub use shares::{Hold, Memory, Shares};

/// A card by its position in the account.
pub type Card = usize;
