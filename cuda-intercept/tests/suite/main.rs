//! The preloaded library in real processes, with the simulated driver: limits, lookups, and doing no harm.
//!
//! Most tests run twice. Outside, a test starts a machine and an account, and starts itself again with the library
//! preloaded. Inside, it is the limited program. The programs come from the staged tree (`cargo xtask build`).
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that panics has found something"
)]

mod capture;
mod contexts;
mod cuda;
mod dlopen;
mod driver_lookups;
mod harmless;
mod library;
mod linear;
mod lookup;
mod management;
mod null_arguments;
mod pools;
mod queries;
mod shared;
mod signatures;
mod stage;
mod virtual_memory;
