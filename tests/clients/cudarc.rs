//! `client-cudarc`: a Rust program that uses cudarc.
//!
//! Runs on any driver, simulated or real, with or without a limit. `--expect-total MIB` is the expected size of the
//! first card.

use std::error::Error;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaSlice, DriverError, result};

/// The expected size from the command line, in bytes.
fn expected() -> Result<Option<usize>, Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.as_slice() {
        [] => Ok(None),
        [flag, mib] if flag == "--expect-total" => Ok(Some(mib.parse::<usize>()? << 20)),
        _ => Err("usage: client-cudarc [--expect-total MIB]".into()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let expected = expected()?;
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let (free, total) = result::mem_get_info()?;
    assert!(free <= total);
    assert_eq!(context.total_mem()?, total);
    if let Some(expected) = expected {
        assert_eq!(total, expected);
    }

    let numbers: Vec<u32> = (0..1 << 20).collect();
    let there = stream.clone_htod(&numbers)?;
    let copy = stream.clone_dtod(&there)?;
    assert_eq!(stream.clone_dtoh(&copy)?, numbers);
    let zeros = stream.alloc_zeros::<u8>(1 << 20)?;
    assert!(stream.clone_dtoh(&zeros)?.iter().all(|byte| *byte == 0));
    assert!(result::mem_get_info()?.0 < free);
    drop((there, copy, zeros));
    stream.synchronize()?;

    let forked = context.new_stream()?;
    // SAFETY: the memory is never read.
    let most: CudaSlice<u8> = unsafe { forked.alloc(result::mem_get_info()?.0 / 10 * 9) }?;
    // SAFETY: as above.
    let refused = unsafe { forked.alloc::<u8>(total / 5) }.map(drop);
    assert_eq!(
        refused,
        Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY))
    );
    drop(most);
    forked.synchronize()?;
    // SAFETY: as above.
    drop(unsafe { forked.alloc::<u8>(total / 5) }?);
    println!("OK cudarc: {} of {} MiB", context.name()?, total >> 20);
    Ok(())
}
