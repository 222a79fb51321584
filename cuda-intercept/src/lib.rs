//! The hooks that keep a CUDA program inside its limit.
//!
//! A program reaches the driver through three doors: a linked symbol, `dlsym` (and `dlvsym`), or
//! `cuGetProcAddress`. One table ([`table`]) names every function that stands in the way, and
//! all three doors read it. The loader's own doors, `dlopen` and `dlmopen`, are kept where the hooks are found
//! (`door/open.rs`). A hook charges the account before it asks the driver and gives back what
//! the driver did not take; what it cannot decide it forwards.
//!
//! This code runs inside other people's programs, in every thread, after `fork`, without an agent,
//! without a driver. So it never panics, prints, blocks on another process or holds a lock while the
//! driver runs; it needs no standard library; and it does nothing at all until the first `cu*` or
//! `nvml*` function is used, or a library is opened out of the hooks' reach.
//!
//! # Decision: open or closed
//! A program is under a limit if a container's account stands at its fixed path, or if the environment
//! names one. When an account at the fixed path cannot be used (unreadable, of another version), a limit
//! is known to apply and cannot be kept: calls that take memory are refused as if it were full. When only
//! the environment names an account that cannot be used, nothing says that a limit applies; the program
//! runs as if there were no library, and the agent sees it take memory without an account.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(
    test,
    expect(clippy::expect_used, reason = "a test that panics has found something")
)]

#[cfg(not(all(
    target_arch = "x86_64",
    target_os = "linux",
    target_pointer_width = "64"
)))]
compile_error!(
    "the interception library needs x86-64 Linux: dlsym must reach the real one by a jump, which is \
     written in that machine's instructions"
);

extern crate alloc;

mod account;
mod dlsym;
mod driver;
mod driver_dependency;
mod elf;
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
