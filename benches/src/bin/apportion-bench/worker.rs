//! The measured process. It repeats one operation and prints the times as one JSON line.

use std::hint::black_box;
use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use libloading::os::unix::{Library, RTLD_NOW};
use serde::{Deserialize, Serialize};

use crate::cuda::{Cuda, must};
use crate::metrics::{self, CallMetrics};
use crate::quantiles::SampleQuantiles;

/// The repeated operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkerTask {
    /// Allocating and freeing 4 KiB
    AllocSmall,
    /// Allocating and freeing 2 MiB
    AllocLarge,
    /// Allocating and freeing 4 KiB while ten thousand other allocations are held
    AllocAmong,
    /// Allocating and freeing 4 KiB in stream order
    AllocAsync,
    /// Asking for free and total memory
    MemoryInfo,
    /// Asking for more than the limit, which is less than the card
    Refused,
    /// Asking for almost all of the limit while other processes hold a little more than the rest
    RefusedBeside,
    /// Waiting for a stream whose memory pool is charged
    Wait,
    /// Holding memory, and reporting it, until the input ends
    Stay,
    /// Launching a kernel that does nothing
    Launch,
    /// Calling a function that has no hook
    Unhooked,
    /// Opening and closing a library that stays loaded
    Open,
    /// The same for a library that must resolve symbols in itself first
    OpenDeep,
    /// Allocating and freeing 2 MiB for a second from when the input ends
    Contend,
    /// The same in eight threads
    ContendThreads,
    /// Loading the driver and making the first allocation, once
    FirstUse,
    /// Printing the UUID of the first card, once
    Card,
    /// Everything that GPU-Virt-Bench measures of single calls
    Metrics,
}

/// What a worker prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum WorkerOutput {
    /// Nanoseconds of one operation in each batch.
    Samples(Vec<f64>),
    /// Nanoseconds of single operations, and the CPU time of one.
    Contended {
        /// Wall-clock time of a sample of operations.
        clock: SampleQuantiles,
        /// CPU time of one operation, averaged over all.
        processor: f64,
    },
    Card([u8; 16]),
    /// Every metric of one side.
    Metrics(CallMetrics),
}

/// `RTLD_DEEPBIND` of glibc.
const RTLD_DEEPBIND: i32 = 8;
/// How long one worker measures.
const PERIOD: Duration = Duration::from_millis(250);
/// How long it measures under contention.
const CONTENTION: Duration = Duration::from_secs(1);
/// The duration of a batch, so that reading the clock does not show.
const BATCH: Duration = Duration::from_micros(200);
pub(crate) const KIB: usize = 1 << 10;
/// Above the account's limit and below the card's memory.
const TOO_MUCH: usize = 768 << 30;
/// The limit, less half of what 63 processes with [`OTHERS_HOLD`] hold.
const TOO_MUCH_BESIDE: usize = (512 << 30) - (63 << 20);
/// What each process with `WorkerTask::Stay` holds.
const OTHERS_HOLD: usize = 2 << 20;
/// How many other allocations a process holds.
pub(crate) const OTHERS: usize = 10_000;
/// How many threads contend in one process.
const THREADS: usize = 8;

pub(crate) fn measure(work: WorkerTask) -> Result<()> {
    let begun = Instant::now();
    let cuda = Cuda::open().context("failed to load the driver")?;
    let answer = match work {
        WorkerTask::Card => WorkerOutput::Card(cuda.card()?),
        WorkerTask::Metrics => WorkerOutput::Metrics(metrics::measure(&cuda, begun)?),
        WorkerTask::FirstUse => {
            cuda.enter()?;
            must("an allocation", cuda.alloc_and_free(4 * KIB))?;
            WorkerOutput::Samples(vec![nanoseconds(begun.elapsed())])
        }
        WorkerTask::Contend => contend(&cuda, 1)?,
        WorkerTask::ContendThreads => contend(&cuda, THREADS)?,
        WorkerTask::AllocSmall => samples(&cuda, || cuda.alloc_and_free(4 * KIB))?,
        WorkerTask::AllocLarge => samples(&cuda, || cuda.alloc_and_free(2048 * KIB))?,
        WorkerTask::AllocAmong => {
            cuda.enter()?;
            for _ in 0..OTHERS {
                must("an allocation", cuda.keep(4 * KIB))?;
            }
            samples(&cuda, || cuda.alloc_and_free(4 * KIB))?
        }
        WorkerTask::AllocAsync => samples(&cuda, || cuda.alloc_and_free_async(4 * KIB))?,
        WorkerTask::Refused => samples(&cuda, || cuda.alloc_too_much(TOO_MUCH))?,
        WorkerTask::RefusedBeside => samples(&cuda, || cuda.alloc_too_much(TOO_MUCH_BESIDE))?,
        WorkerTask::Wait => {
            cuda.enter()?;
            must("an allocation", cuda.alloc_and_free_async(4 * KIB))?;
            samples(&cuda, || cuda.wait_for_stream())?
        }
        WorkerTask::Stay => {
            cuda.enter()?;
            must("an allocation", cuda.keep(OTHERS_HOLD))?;
            println!("in");
            std::io::stdin().read_to_end(&mut Vec::new())?;
            return Ok(());
        }
        WorkerTask::MemoryInfo => samples(&cuda, || cuda.ask_memory())?,
        WorkerTask::Launch => {
            cuda.enter()?;
            let kernel = cuda.kernel()?;
            samples(&cuda, || cuda.launch(kernel))?
        }
        WorkerTask::Unhooked => samples(&cuda, || cuda.leave())?,
        WorkerTask::Open => samples(&cuda, || open_and_close(RTLD_NOW))?,
        WorkerTask::OpenDeep => samples(&cuda, || open_and_close(RTLD_NOW | RTLD_DEEPBIND))?,
    };
    println!("{}", serde_json::to_string(&answer)?);
    Ok(())
}

/// Opens and closes a library of glibc that stays loaded. Returns 0 on success.
fn open_and_close(flags: i32) -> i32 {
    // SAFETY: the library runs nothing at load.
    let opened = unsafe { Library::open(Some("librt.so.1"), flags) };
    i32::from(opened.and_then(Library::close).is_err())
}

pub(crate) fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

fn samples(cuda: &Cuda, operation: impl FnMut() -> i32) -> Result<WorkerOutput> {
    cuda.enter()?;
    batches(operation).map(WorkerOutput::Samples)
}

/// Nanoseconds of one operation in each of many batches.
pub(crate) fn batches(mut operation: impl FnMut() -> i32) -> Result<Vec<f64>> {
    must("the operation", operation())?;
    let mut batch = 1_u32;
    let mut timed = |count: u32| {
        let start = Instant::now();
        let failed = (0..count).fold(0, |failed, _| failed | black_box(operation()));
        (start.elapsed(), failed)
    };
    while timed(batch).0 < BATCH && batch < 1 << 20 {
        batch *= 2;
    }
    let (begun, mut samples) = (Instant::now(), Vec::new());
    while begun.elapsed() < PERIOD {
        let (time, failed) = timed(batch);
        must("the operation", failed)?;
        samples.push(nanoseconds(time) / f64::from(batch));
    }
    Ok(samples)
}

/// Runs threads that begin when the input ends.
fn contend(cuda: &Cuda, threads: usize) -> Result<WorkerOutput> {
    cuda.enter()?;
    must("an allocation", cuda.alloc_and_free(2048 * KIB))?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let ends: Vec<Result<(Vec<f64>, f64)>> = thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| alone_in_thread(cuda)))
            .collect();
        let joined = started.into_iter().map(|thread| thread.join());
        joined
            .map(|end| end.unwrap_or_else(|_| bail!("a thread panicked")))
            .collect()
    });
    let (mut clock, mut processor) = (Vec::new(), 0.0);
    for end in ends {
        let (samples, each) = end?;
        clock.extend(samples);
        processor += each / threads as f64;
    }
    let clock = SampleQuantiles::of(clock);
    Ok(WorkerOutput::Contended { clock, processor })
}

/// Times every operation and keeps one of 16. Also returns the CPU time of one operation.
fn alone_in_thread(cuda: &Cuda) -> Result<(Vec<f64>, f64)> {
    cuda.enter()?;
    let (begun, processor) = (Instant::now(), processor_time()?);
    let (mut samples, mut count, mut before) = (Vec::new(), 0_u64, Instant::now());
    while begun.elapsed() < CONTENTION {
        must("an allocation", cuda.alloc_and_free(2048 * KIB))?;
        let now = Instant::now();
        if count.is_multiple_of(16) {
            samples.push(nanoseconds(now - before));
        }
        count += 1;
        before = now;
    }
    let spent = processor_time()? - processor;
    Ok((samples, spent / count as f64))
}

/// The CPU time of this thread, in nanoseconds.
fn processor_time() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")
        .context("failed to read this thread's processor time")?;
    let first = text.split_whitespace().next().unwrap_or_default();
    first.parse().context("schedstat starts with a number")
}
