//! The simulated driver's `libcuda.so.1`: the CUDA driver API over the simulated machine.
//!
//! A device pointer is lazily backed memory of the process, so copies and fills move real bytes. The machine decides
//! what the memory costs. Streams are always empty: a call does its work before it returns. Without a machine, `cuInit`
//! finds no device.
//!
//! To add a function, add a row to the `exports!` of its file, and a handler below it.

mod array;
mod array_descriptor;
mod batches;
mod call_gate;
mod capture;
mod captured_work;
mod checkpoint;
mod conditionals;
mod context;
mod context_events;
mod copy;
mod copy_rows;
mod coredump;
mod device;
mod device_attributes;
mod dot;
mod driver;
mod edges;
mod error;
mod event;
mod event_nodes;
mod event_sharing;
mod executables;
mod export;
mod fill;
mod functions;
mod graph_ids;
mod graph_memory;
mod graphs;
mod green_contexts;
mod host;
mod image;
mod ipc_memory;
mod kernel_footprint;
mod kernel_nodes;
mod legacy_launches;
mod libraries;
mod linking;
mod location;
mod logs;
mod lookup;
mod managed;
mod mapping;
mod memory;
mod memory_file;
mod memory_ops;
mod mipmaps;
mod modules;
mod multicast;
mod node_parameters;
mod notifications;
mod number;
mod occupancy;
mod pointer;
mod pointer_attributes;
mod pools;
mod primary;
mod profiler;
mod resources;
mod restore_thread;
mod retained_memory;
mod sparse;
mod stream;
mod tables;
mod tensor_maps;
mod texture_refs;
mod textures;
mod tiles;
mod unsupported;
mod user_objects;
mod virtual_memory;
mod visible;
mod work_nodes;

/// The rows of all files: what the library exports.
fn tables_of_rows() -> impl Iterator<Item = &'static [export::EntryPoint]> {
    [
        array::ROWS,
        batches::ROWS,
        ipc_memory::ROWS,
        capture::ROWS,
        checkpoint::ROWS,
        conditionals::ROWS,
        context::ROWS,
        context_events::ROWS,
        copy::ROWS,
        copy_rows::ROWS,
        coredump::ROWS,
        device::ROWS,
        dot::ROWS,
        driver::ROWS,
        edges::ROWS,
        error::ROWS,
        event::ROWS,
        event_nodes::ROWS,
        event_sharing::ROWS,
        executables::ROWS,
        fill::ROWS,
        functions::ROWS,
        graph_ids::ROWS,
        graph_memory::ROWS,
        graphs::ROWS,
        green_contexts::ROWS,
        host::ROWS,
        kernel_nodes::ROWS,
        legacy_launches::ROWS,
        libraries::ROWS,
        linking::ROWS,
        logs::ROWS,
        lookup::ROWS,
        managed::ROWS,
        memory::ROWS,
        memory_ops::ROWS,
        mipmaps::ROWS,
        modules::ROWS,
        multicast::ROWS,
        node_parameters::ROWS,
        notifications::ROWS,
        occupancy::ROWS,
        pointer_attributes::ROWS,
        pools::ROWS,
        primary::ROWS,
        profiler::ROWS,
        resources::ROWS,
        sparse::ROWS,
        stream::ROWS,
        tensor_maps::ROWS,
        texture_refs::ROWS,
        textures::ROWS,
        tiles::ROWS,
        unsupported::ROWS,
        user_objects::ROWS,
        virtual_memory::ROWS,
        work_nodes::ROWS,
    ]
    .into_iter()
}
