//! A CUDA runtime for tests: `libcudart.so.12` and `libcudart.so.13` over the public driver API.
//!
//! NVIDIA's runtime asks the driver for private tables before anything else. The simulated driver does not have them,
//! so programs linked with that runtime cannot start on simulated cards. This library replaces the runtime there. It
//! uses only the public headers and finds every driver function by `cuGetProcAddress`, as NVIDIA's does. So hooks in
//! front of the driver see the same calls as from NVIDIA's runtime: primary contexts, allocations, copies, streams,
//! graphs, code.
//!
//! It does no more than that. A kernel does what the driver makes it do, which is nothing on a simulated card. Names
//! without a row in this crate return `cudaErrorNotSupported`. All names are in `names-12.txt` and `names-13.txt`.
//! `cargo xtask build` links the archive once for each list.
//!
//! Pointers come from the program, as in any C library. The program is responsible for their validity.

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
