//! A CUDA runtime for tests: `libcudart.so.12` and `libcudart.so.13` over the public driver API.
//!
//! NVIDIA's runtime asks the driver for private tables before anything else. The simulated driver has none and
//! will have none, so programs that are linked with that runtime cannot start on simulated cards. This
//! library takes the runtime's place there. It knows only what the public headers say and fetches every driver
//! function by `cuGetProcAddress`, as NVIDIA's does, so that hooks in front of the driver see what they
//! see from the real one: primary contexts, allocations, copies, streams, graphs, code.
//!
//! It refuses to be more than that. A kernel does what the driver makes of it, which is nothing on a simulated
//! card. What has no row in this crate answers `cudaErrorNotSupported`; the list of names is in
//! `names-12.txt` and `names-13.txt`, and `cargo xtask build` links the archive once for each.
//!
//! Pointers come from the program, as in any C library: a program that passes a wrong one is at fault.

#![expect(
    non_snake_case,
    reason = "functions of the driver have the driver's names"
)]
#![expect(
    clippy::too_many_arguments,
    reason = "the signatures are those of the CUDA runtime and driver"
)]

mod code;
mod context;
mod copy;
mod copy_shape;
mod default_stream;
mod device;
mod driver;
mod entry;
mod error;
mod error_names;
mod events;
mod function;
mod graph_nodes;
mod graphs;
mod ipc;
mod launch;
mod library;
mod locations;
mod lookup;
mod memory;
mod pools;
mod properties;
mod streams;
mod symbols;
