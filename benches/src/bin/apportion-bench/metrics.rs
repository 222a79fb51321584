//! One process that measures everything that GPU-Virt-Bench defines for single calls. The definitions are that
//! benchmark's, the code is ours. One start gives all figures of one side.
//!
//! | here | there | what |
//! | --- | --- | --- |
//! | `launch` | OH-001 | `cuLaunchKernel` of a kernel that does nothing, until it returns |
//! | `alloc`, `free` | OH-002, OH-003 | `cuMemAlloc`, `cuMemFree` of 1 MiB |
//! | `context`, `first_use` | OH-004 | a context made and destroyed; from loading the driver to the first memory |
//! | `memory_info` | OH-005 | `cuMemGetInfo` |
//! | `refused` | IS-002 | an allocation larger than what is free, until it is refused |
//! | `alloc_among` | FRAG-002 | 4 KiB taken and freed while ten thousand others are held |

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::cuda::{Cuda, must};
use crate::quantiles::SampleQuantiles;
use crate::worker::{KIB, OTHERS, batches, nanoseconds};

/// Nanoseconds of one operation each: the median of many.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CallMetrics {
    first_use: f64,
    context: f64,
    launch: f64,
    alloc: f64,
    free: f64,
    memory_info: f64,
    refused: f64,
    alloc_among: f64,
}

const MIB: usize = 1 << 20;
/// The maximum number of 1 MiB pieces that are held at a time.
const PIECES: usize = 64;
/// How long allocations and frees are measured.
const PERIOD: Duration = Duration::from_millis(250);
/// Creating contexts takes long, so there are few.
const CONTEXTS: usize = 3;
/// A driver's refusal may take long, too.
const REFUSALS: usize = 32;

/// Measures everything. `begun` is before the driver was loaded.
pub(crate) fn measure(cuda: &Cuda, begun: Instant) -> Result<CallMetrics> {
    cuda.enter()?;
    must("an allocation", cuda.alloc_and_free(4 * KIB))?;
    let first_use = nanoseconds(begun.elapsed());
    let kernel = cuda.kernel()?;
    let launch = middle(batches(|| cuda.launch(kernel))?);
    must("cuCtxSynchronize", cuda.synchronize())?;
    let (alloc, free) = apart(cuda)?;
    let memory_info = middle(batches(|| cuda.ask_memory())?);
    let refused = refused(cuda)?;
    for _ in 0..OTHERS {
        must("an allocation", cuda.keep(4 * KIB))?;
    }
    let alloc_among = middle(batches(|| cuda.alloc_and_free(4 * KIB))?);
    Ok(CallMetrics {
        first_use,
        context: context(cuda)?,
        launch,
        alloc,
        free,
        memory_info,
        refused,
        alloc_among,
    })
}

fn middle(samples: Vec<f64>) -> f64 {
    SampleQuantiles::of(samples).middle
}

/// Allocations and frees apart: each sample times a run of one kind.
fn apart(cuda: &Cuda) -> Result<(f64, f64)> {
    let (mut allocs, mut frees) = (Vec::new(), Vec::new());
    let (end, mut held) = (Instant::now() + PERIOD, Vec::with_capacity(PIECES));
    while Instant::now() < end {
        let start = Instant::now();
        for _ in 0..PIECES {
            held.push(cuda.take(MIB)?);
        }
        allocs.push(nanoseconds(start.elapsed()) / PIECES as f64);
        let start = Instant::now();
        for address in held.drain(..) {
            must("cuMemFree_v2", cuda.give(address))?;
        }
        frees.push(nanoseconds(start.elapsed()) / PIECES as f64);
    }
    Ok((middle(allocs), middle(frees)))
}

/// Requests more than there is.
fn refused(cuda: &Cuda) -> Result<f64> {
    let too_much = cuda.free_memory()? + 64 * MIB;
    let mut samples = Vec::new();
    for _ in 0..REFUSALS {
        let start = Instant::now();
        let code = black_box(cuda.keep(too_much));
        samples.push(nanoseconds(start.elapsed()));
        ensure!(code != 0, "more than is free was given");
    }
    Ok(middle(samples))
}

/// The time to create and destroy another context of this process.
fn context(cuda: &Cuda) -> Result<f64> {
    let mut samples = Vec::new();
    for _ in 0..CONTEXTS {
        let start = Instant::now();
        cuda.make_and_destroy_context()?;
        samples.push(nanoseconds(start.elapsed()));
    }
    Ok(middle(samples))
}
