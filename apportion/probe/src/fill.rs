//! Takes memory until it is refused, then holds it.

use std::error::Error;
use std::io::{Read, Write, stdin, stdout};

use cudarc::driver::{CudaContext, DriverError, result, sys};
use nvml_wrapper::Nvml;
use serde::Serialize;

use crate::cards;

/// The first piece asked for; each refusal halves it.
const LARGEST: usize = 256 << 20;
/// The last piece asked for: the block size in which drivers allocate.
const SMALLEST: usize = 2 << 20;

/// What the program saw.
#[derive(Serialize)]
struct FillOutput {
    uuid: String,
    /// The size of the card, asked in three ways.
    cuda_total_bytes: u64,
    cuda_info_total_bytes: u64,
    nvml_total_bytes: u64,
    /// What it got before it was refused.
    taken_bytes: u64,
    refused_with: String,
    /// What the program itself saw as free at the end.
    free_bytes: u64,
}

/// Fills the first card, prints a [`FillOutput`] and holds the memory until standard input ends.
pub(crate) fn fill() -> Result<(), Box<dyn Error>> {
    cards::open()?;
    let context = CudaContext::new(0)?;
    let uuid = cards::uuid_of(&context)?;
    let nvml_total_bytes = Nvml::init()?
        .device_by_uuid(uuid.as_str())?
        .memory_info()?
        .total;
    let cuda_total_bytes = context.total_mem()?.try_into()?;
    let (pieces, refused_with) = take()?;
    let (free, total) = context.mem_get_info()?;
    let report = FillOutput {
        uuid,
        cuda_total_bytes,
        cuda_info_total_bytes: total.try_into()?,
        nvml_total_bytes,
        taken_bytes: pieces.iter().map(|piece| piece.1).sum(),
        refused_with,
        free_bytes: free.try_into()?,
    };
    writeln!(stdout(), "{}", serde_json::to_string(&report)?)?;
    stdin().read_to_end(&mut Vec::new())?;
    for (address, _) in pieces {
        // SAFETY: the address came from `malloc_sync`, is freed once and not used otherwise.
        unsafe { result::free_sync(address) }?;
    }
    Ok(())
}

/// Pieces of device memory with their sizes, and the refusal that ended the loop.
type FillResult = (Vec<(sys::CUdeviceptr, u64)>, String);

/// Takes pieces, smaller ones after each refusal.
fn take() -> Result<FillResult, Box<dyn Error>> {
    let mut pieces = Vec::new();
    let mut refused_with = String::new();
    let mut size = LARGEST;
    while size >= SMALLEST {
        // SAFETY: a context is current in this thread; the memory is never read.
        match unsafe { result::malloc_sync(size) } {
            Ok(address) => pieces.push((address, size.try_into()?)),
            Err(error) => {
                refused_with = name_of(error);
                size /= 2;
            }
        }
    }
    Ok((pieces, refused_with))
}

/// The name of the error in `cuda.h`.
fn name_of(error: DriverError) -> String {
    error.error_name().map_or_else(
        |e| format!("{e}"),
        |name| name.to_string_lossy().into_owned(),
    )
}
