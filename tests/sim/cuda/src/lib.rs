//! The simulated driver's `libcuda.so.1`: the CUDA driver API over the simulated machine.
//!
//! A device pointer is lazily backed memory of the process, so copies and fills move real bytes; what
//! the memory costs is the machine's to say. Streams are empty at any time: a call does its work
//! before it returns. Without a machine to talk to, `cuInit` finds no device.
//!
//! Adding a function is adding a row to the `exports!` of the file that it belongs to, and its
//! handler below.

mod context;
mod device;
mod device_attributes;
mod driver;
mod error;
mod export;
mod lookup;
mod mapping;
mod memory;
mod pointer;
mod primary;
mod tables;
mod visible;

/// The rows of all files: what the library exports.
fn tables_of_rows() -> impl Iterator<Item = &'static [export::Row]> {
    [
        context::ROWS,
        device::ROWS,
        driver::ROWS,
        error::ROWS,
        lookup::ROWS,
        memory::ROWS,
        primary::ROWS,
    ]
    .into_iter()
}
