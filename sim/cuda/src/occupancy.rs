//! How many blocks fit a multiprocessor. Only threads and blocks are modelled as resources.

use crate::driver::driver;
use crate::error::{INVALID_VALUE, Outcome};
use crate::export::exports;
use crate::functions::{self, LaunchConfig};
use crate::pointer::{In, Out};

/// Threads and blocks of a multiprocessor, as in the device attributes.
const THREADS: i32 = 2048;
const BLOCKS: i32 = 32;
const BLOCK_THREADS: i32 = 1024;
/// Shared memory of a multiprocessor.
const SHARED_BYTES: usize = 233_472;

/// `CUoccupancyB2DSize`.
type SharedBytes = Option<unsafe extern "C" fn(block: i32) -> usize>;

exports! {
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, function: u64, block: i32, shared: usize) = active_blocks => "cuOccupancyMaxActiveBlocksPerMultiprocessor" @ 6050;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: Out<i32>, function: u64, block: i32, shared: usize, flags: u32) = active_blocks_with_flags => "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" @ 7000;
    cuOccupancyMaxPotentialBlockSize(grid: Out<i32>, block: Out<i32>, function: u64, shared_of: SharedBytes, shared: usize, limit: i32) = block_size => "cuOccupancyMaxPotentialBlockSize" @ 6050;
    cuOccupancyMaxPotentialBlockSizeWithFlags(grid: Out<i32>, block: Out<i32>, function: u64, shared_of: SharedBytes, shared: usize, limit: i32, flags: u32) = block_size_with_flags => "cuOccupancyMaxPotentialBlockSizeWithFlags" @ 7000;
    cuOccupancyAvailableDynamicSMemPerBlock(shared: Out<usize>, function: u64, blocks: i32, block: i32) = available_shared => "cuOccupancyAvailableDynamicSMemPerBlock" @ 10020;
    cuOccupancyMaxActiveClusters(clusters: Out<i32>, function: u64, config: In<LaunchConfig>) = active_clusters => "cuOccupancyMaxActiveClusters" @ 11070;
    cuOccupancyMaxPotentialClusterSize(size: Out<i32>, function: u64, config: In<LaunchConfig>) = cluster_size => "cuOccupancyMaxPotentialClusterSize" @ 11070;
}

fn active_blocks(blocks: Out<i32>, function: u64, block: i32, shared: usize) -> Outcome {
    functions::name(function)?;
    if block <= 0 {
        return Err(INVALID_VALUE);
    }
    let by_shared = SHARED_BYTES.checked_div(shared).unwrap_or(SHARED_BYTES);
    let by_shared = i32::try_from(by_shared).unwrap_or(i32::MAX);
    let fits = if block > BLOCK_THREADS {
        0
    } else {
        (THREADS / block).min(BLOCKS)
    };
    blocks.put(fits.min(by_shared))
}

fn active_blocks_with_flags(
    blocks: Out<i32>,
    function: u64,
    block: i32,
    shared: usize,
    _flags: u32,
) -> Outcome {
    active_blocks(blocks, function, block, shared)
}

/// Returns the largest block: no size is better than another here.
fn block_size(
    grid: Out<i32>,
    block: Out<i32>,
    function: u64,
    _shared_of: SharedBytes,
    _shared: usize,
    limit: i32,
) -> Outcome {
    functions::name(function)?;
    let size = if limit <= 0 {
        BLOCK_THREADS
    } else {
        limit.min(BLOCK_THREADS)
    };
    let multiprocessors = i32::try_from(driver()?.facts(0)?.multiprocessors).unwrap_or(i32::MAX);
    block.put(size)?;
    grid.put(multiprocessors.saturating_mul((THREADS / size).min(BLOCKS)))
}

fn block_size_with_flags(
    grid: Out<i32>,
    block: Out<i32>,
    function: u64,
    shared_of: SharedBytes,
    shared: usize,
    limit: i32,
    _flags: u32,
) -> Outcome {
    block_size(grid, block, function, shared_of, shared, limit)
}

fn available_shared(shared: Out<usize>, function: u64, blocks: i32, block: i32) -> Outcome {
    functions::name(function)?;
    let blocks = usize::try_from(blocks)
        .ok()
        .filter(|blocks| *blocks > 0)
        .ok_or(INVALID_VALUE)?;
    if block <= 0 {
        Err(INVALID_VALUE)
    } else {
        shared.put(SHARED_BYTES / blocks)
    }
}

fn active_clusters(clusters: Out<i32>, function: u64, config: In<LaunchConfig>) -> Outcome {
    functions::name(function)?;
    config.get()?;
    clusters.put(i32::try_from(driver()?.facts(0)?.multiprocessors / 8).unwrap_or(i32::MAX))
}

fn cluster_size(size: Out<i32>, function: u64, config: In<LaunchConfig>) -> Outcome {
    functions::name(function)?;
    config.get()?;
    size.put(8)
}
