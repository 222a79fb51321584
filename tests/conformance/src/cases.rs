//! The cases by name. Each runs in a process of its own, so that none is affected by another.

use crate::record::{CaseError, CaseReport};

mod arrays;
mod batches;
mod checkpoint;
mod contexts;
mod deadly_nulls;
mod dependencies;
mod driver_lookup;
mod entry_points;
mod graphs;
mod green;
mod linking;
mod managed;
mod modules;
mod nodes;
mod null_outputs;
mod pitched;
mod plain;
mod pools;
mod processes;
mod queries;
mod rounding;
mod starting;
mod textures;
mod virtual_memory;

pub(crate) use checkpoint::sleep;
pub(crate) use deadly_nulls::perform as perform_deadly;
pub(crate) use processes::hold;

/// One row of the table.
pub(crate) struct ConformanceCase {
    /// Its name on the command line and in the records.
    pub(crate) name: &'static str,
    /// What it tests.
    pub(crate) about: &'static str,
    pub(crate) run: fn(&CaseReport) -> Result<(), CaseError>,
}

/// Every case.
pub(crate) const CASES: &[ConformanceCase] = &[
    ConformanceCase {
        name: "starting",
        about: "what works before cuInit, before a context, and without a card",
        run: starting::run,
    },
    ConformanceCase {
        name: "plain",
        about: "cuMemAlloc and cuMemFree: sizes, refusals, frees that are wrong",
        run: plain::run,
    },
    ConformanceCase {
        name: "rounding",
        about: "what NVML counts for small and large allocations",
        run: rounding::run,
    },
    ConformanceCase {
        name: "pitched",
        about: "cuMemAllocPitch: pitch, element sizes",
        run: pitched::run,
    },
    ConformanceCase {
        name: "managed",
        about: "cuMemAllocManaged: flags, use from the host",
        run: managed::run,
    },
    ConformanceCase {
        name: "arrays",
        about: "cuArrayCreate: formats, dimensions, what they take",
        run: arrays::run,
    },
    ConformanceCase {
        name: "modules",
        about: "code: what loading it takes, names that it has not",
        run: modules::run,
    },
    ConformanceCase {
        name: "linking",
        about: "code that is linked, and loaded then",
        run: linking::run,
    },
    ConformanceCase {
        name: "textures",
        about: "texture and surface objects",
        run: textures::run,
    },
    ConformanceCase {
        name: "batches",
        about: "many copies by one call",
        run: batches::run,
    },
    ConformanceCase {
        name: "virtual_memory",
        about: "handles, reservations, mappings and who keeps memory alive",
        run: virtual_memory::run,
    },
    ConformanceCase {
        name: "checkpoint",
        about: "two processes of 60 % of the card each that take turns by checkpoints",
        run: checkpoint::run,
    },
    ConformanceCase {
        name: "sharing_handles",
        about: "a handle exported and imported again",
        run: virtual_memory::sharing,
    },
    ConformanceCase {
        name: "pools",
        about: "stream-ordered allocation: reserved and used, thresholds, trimming",
        run: pools::run,
    },
    ConformanceCase {
        name: "created_pools",
        about: "pools that a program creates and destroys",
        run: pools::created,
    },
    ConformanceCase {
        name: "destroyed_pools",
        about: "a pool that is destroyed while allocations from it live",
        run: pools::destroyed_in_use,
    },
    ConformanceCase {
        name: "graphs",
        about: "memory that graphs allocate: at which step it is taken, kept and given back",
        run: graphs::run,
    },
    ConformanceCase {
        name: "freed_at_launch",
        about: "graphs that free at a launch what the one before left allocated",
        run: graphs::freed_at_launch,
    },
    ConformanceCase {
        name: "captured_memory",
        about: "allocations of a stream that is captured",
        run: graphs::captured,
    },
    ConformanceCase {
        name: "nodes",
        about: "nodes of graphs: asked for, changed, switched off; what each does",
        run: nodes::run,
    },
    ConformanceCase {
        name: "dependencies",
        about: "edges of graphs: made, asked for, taken away, and kept to by launches",
        run: dependencies::run,
    },
    ConformanceCase {
        name: "captured_dependencies",
        about: "what nodes depend on that streams were captured into",
        run: dependencies::captured,
    },
    ConformanceCase {
        name: "green_contexts",
        about: "multiprocessors as resources: split, described, and made green contexts of",
        run: green::run,
    },
    ConformanceCase {
        name: "contexts",
        about: "primary contexts by retain count, created ones, what their end frees",
        run: contexts::run,
    },
    ConformanceCase {
        name: "context_overhead",
        about: "what contexts cost a process",
        run: contexts::overhead,
    },
    ConformanceCase {
        name: "driver_lookup",
        about: "cuGetProcAddress over names, versions and flags",
        run: driver_lookup::run,
    },
    ConformanceCase {
        name: "entry_points",
        about: "cuGetProcAddress of everything that CUDA's headers name",
        run: entry_points::run,
    },
    ConformanceCase {
        name: "deadly_nulls",
        about: "NULL where a driver may end the process: each call in a child",
        run: deadly_nulls::run,
    },
    ConformanceCase {
        name: "queries",
        about: "cuMemGetInfo, cuDeviceTotalMem and NVML of the same card",
        run: queries::run,
    },
    ConformanceCase {
        name: "null_outputs",
        about: "functions that are given NULL to write to",
        run: null_outputs::run,
    },
    ConformanceCase {
        name: "processes",
        about: "memory of other processes, and of one that is killed",
        run: processes::run,
    },
];
