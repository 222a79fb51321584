//! The simulated driver's `libcuda.so.1`: the CUDA driver API over the simulated machine.
//!
//! A device pointer is lazily backed memory of the process, so copies and fills move real bytes; what
//! the memory costs is the machine's to say. Streams are empty at any time: a call does its work
//! before it returns. Without a machine to talk to, `cuInit` finds no device.
//!
//! Adding a function is adding a row to the `exports!` of the file that it belongs to, and its
//! handler below.

mod array;
mod between;
mod capture;
mod captured_work;
mod conditionals;
mod context;
mod copy;
mod copy_rows;
mod device;
mod device_attributes;
mod driver;
mod edges;
mod error;
mod event;
mod event_sharing;
mod export;
mod fill;
mod functions;
mod graph_memory;
mod graphs;
mod green;
mod host;
mod image;
mod keeping;
mod kernel_nodes;
mod libraries;
mod location;
mod logs;
mod lookup;
mod managed;
mod mapping;
mod memory;
mod memory_file;
mod mipmaps;
mod modules;
mod multicast;
mod needs;
mod number;
mod occupancy;
mod pointer;
mod pointer_attributes;
mod pools;
mod primary;
mod resources;
mod shape;
mod stream;
mod tables;
mod tensor_maps;
mod tiles;
mod virtual_memory;
mod visible;
mod work_nodes;

/// The rows of all files: what the library exports.
fn tables_of_rows() -> impl Iterator<Item = &'static [export::Row]> {
    [
        array::ROWS,
        between::ROWS,
        capture::ROWS,
        conditionals::ROWS,
        context::ROWS,
        copy::ROWS,
        copy_rows::ROWS,
        device::ROWS,
        driver::ROWS,
        edges::ROWS,
        error::ROWS,
        event::ROWS,
        event_sharing::ROWS,
        fill::ROWS,
        functions::ROWS,
        graph_memory::ROWS,
        graphs::ROWS,
        green::ROWS,
        host::ROWS,
        kernel_nodes::ROWS,
        libraries::ROWS,
        logs::ROWS,
        lookup::ROWS,
        managed::ROWS,
        memory::ROWS,
        mipmaps::ROWS,
        modules::ROWS,
        multicast::ROWS,
        occupancy::ROWS,
        pointer_attributes::ROWS,
        pools::ROWS,
        primary::ROWS,
        resources::ROWS,
        stream::ROWS,
        tensor_maps::ROWS,
        tiles::ROWS,
        virtual_memory::ROWS,
        work_nodes::ROWS,
    ]
    .into_iter()
}
