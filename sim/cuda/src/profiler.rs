//! The profiler's switch. Nothing is profiled, so starting and stopping always succeed. Initialising fails, as in all
//! drivers since CUDA 11.

use crate::context::current;
use crate::error::{NOT_SUPPORTED, Outcome};
use crate::export::exports;

exports! {
    cuProfilerInitialize() = initialize => "cuProfilerInitialize" @ 4000;
    cuProfilerStart() = switch => "cuProfilerStart" @ 4000;
    cuProfilerStop() = switch => "cuProfilerStop" @ 4000;
}

fn initialize() -> Outcome {
    Err(NOT_SUPPORTED)
}

fn switch() -> Outcome {
    current().map(drop)
}
