//! The hooks that keep a CUDA program inside its limit.
//!
//! A program reaches the driver in three ways: by a linked symbol, by `dlsym` (and `dlvsym`), or by
//! `cuGetProcAddress`. One table ([`table`]) lists every hooked function, and all three ways use it. `dlopen` and
//! `dlmopen` are hooked as well, so that libraries are opened where the hooks are found (`dlsym/open.rs`). A hook
//! charges the account before it calls the driver, and takes off what the driver did not use. What a hook cannot
//! judge it forwards.
//!
//! This code runs inside other people's programs: in every thread, after `fork`, without an agent, without a driver.
//! So it never panics, prints, blocks on another process or holds a lock while the driver runs. It needs no standard
//! library. It does nothing until the first `cu*` or `nvml*` function is used, or a library is opened out of the
//! hooks' reach.
//!
//! # Decision: open or closed
//! A program has a limit if a container's account stands at its fixed path, or if the environment names one. If that
//! account cannot be used (unreadable, of another version, missing although named), the limit cannot be kept. Then
//! calls that take memory are refused as if the card were full, and the next call tries again. Without either sign of
//! a limit the program runs as if there were no library, and the agent sees what it takes.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(
    test,
    expect(clippy::expect_used, reason = "a test that panics has found something")
)]

extern crate alloc;

mod account;
mod arch;
mod call_watch;
mod calls;
mod dlsym;
mod driver;
mod driver_dependency;
mod elf;
pub mod entry_points;
mod errno;
mod foreign;
mod hooks;
mod image;
mod launch_cache;
mod process;
mod spin_lock;
pub mod table;
pub mod unhooked;

pub use dlsym::{dlmopen, dlopen, dlsym, dlvsym};
pub use foreign::{
    AllocationNode, AllocationProperties, Context, Device, DevicePointer, Event, Handle, NvmlDevice,
};
pub use foreign::{ArrayMap, ArrayShape, ArrayShape3d, ArrayShape3dV1, ArrayShapeV1};
pub use foreign::{KernelNode, LaunchConfig, LaunchParams, NodeParameters};
pub use foreign::{NvmlMemory, NvmlMemoryV2, Opaque, Pool, PoolProperties, Status, Stream};
pub use foreign::{ProcessDetailList, ProcessUtilization};
pub use table::{DriverLibrary, HookedFunction, ROWS};
