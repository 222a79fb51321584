//! `cuMemAllocManaged`: memory with one address on host and card. The sizes stay small: a program that asks a real
//! driver for more managed memory than the card has can crash the card.

use std::ptr;

use serde_json::json;

use crate::code::ResultCode;
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB, UNTOUCHED, must};

const GLOBAL: u32 = 1;

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let mut address = UNTOUCHED;
    let code = session.cuda.alloc_managed(Some(&mut address), MIB, 0);
    report.equals("no flags", ResultCode::INVALID_VALUE, code);
    let code = session.cuda.alloc_managed(Some(&mut address), 0, GLOBAL);
    report.equals("no bytes", ResultCode::INVALID_VALUE, code);

    let bytes = 16 * MIB;
    let before = session.usage()?;
    let code = session
        .cuda
        .alloc_managed(Some(&mut address), bytes, GLOBAL);
    must("cuMemAllocManaged", code)?;
    let allocated = session.usage()? - before;

    let on_host = address as *mut u8;
    // SAFETY: the host can access `bytes` bytes of managed memory at its CUDA address.
    unsafe { ptr::write_bytes(on_host, 0xa5, bytes) };
    must("cuCtxSynchronize", session.cuda.synchronize())?;
    let touched = session.usage()? - before;

    must(
        "cuMemsetD8_v2",
        session.cuda.set_bytes(address, 0x3c, bytes),
    )?;
    must("cuCtxSynchronize", session.cuda.synchronize())?;
    let on_card = session.usage()? - before;
    // SAFETY: the last byte is inside the memory.
    let last = unsafe { on_host.add(bytes - 1) };
    // SAFETY: as above; the card is done with the memory.
    let seen = unsafe { ptr::read_volatile(last) };
    report.equals("the host sees what the card wrote", 0x3c, seen);

    moved(report, &session, address, bytes)?;
    must("cuMemFree_v2", session.cuda.free(address))?;
    let freed = session.usage()? - before;
    report.observed(
        "16 MiB take",
        json!({ "allocated": allocated, "touched_by_host": touched, "written_by_card": on_card, "freed": freed }),
    );
    let code = session.cuda.free(address);
    report.equals("a second free", ResultCode::INVALID_VALUE, code);
    Ok(())
}

/// The driver version with batched prefetches.
const BATCHES: i32 = 13000;
/// `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`.
const AT_ONCE: i32 = 89;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// Two halves in one call, both to the card.
fn moved(
    report: &CaseReport,
    session: &DriverSession,
    address: u64,
    bytes: usize,
) -> Result<(), CaseError> {
    let (cuda, device) = (&session.cuda, session.device);
    let (mut version, mut at_once, mut stream) = (0, 0, 0);
    let code = cuda.driver_version(Some(&mut version));
    must("cuDriverGetVersion", code)?;
    let code = cuda.device_attribute(Some(&mut at_once), AT_ONCE, device);
    must("cuDeviceGetAttribute", code)?;
    if version < BATCHES || at_once == 0 {
        return Ok(());
    }
    let code = cuda.stream_create(Some(&mut stream), NON_BLOCKING);
    must("cuStreamCreate", code)?;
    let halves = [address, address + bytes as u64 / 2];
    let sizes = [bytes / 2; 2];
    let place = session.location();
    let prefetch = |starts: &[usize]| {
        let (all, kinds) = (starts.as_ptr(), starts.len());
        let (halves, sizes) = (halves.as_ptr(), sizes.as_ptr());
        cuda.prefetch_batch(halves, sizes, 2, Some(&place), all, kinds, 0, stream)
    };
    let fact = "two movements by one call";
    report.equals(fact, ResultCode::SUCCESS, prefetch(&[0]));
    let fact = "places that do not begin with the first";
    report.equals(fact, ResultCode::INVALID_VALUE, prefetch(&[1]));
    must("cuCtxSynchronize", cuda.synchronize())?;
    must("cuStreamDestroy", cuda.stream_destroy(stream))
}
