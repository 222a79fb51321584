//! Many copies in one call: which attributes apply to which copy, and what is refused.

use crate::code::ResultCode;
use crate::layout::{CopyAttributes, CopyOfRows};
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, must};

/// The driver versions with batches, and with their second signatures.
const BATCHES: i32 = 12080;
const SECOND: i32 = 13000;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
const PIECE: usize = 64;
/// The index that belongs to no copy.
const NONE: usize = usize::MAX;

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let cuda = &session.cuda;
    let mut version = 0;
    let code = cuda.driver_version(Some(&mut version));
    must("cuDriverGetVersion", code)?;
    if version < BATCHES {
        return Ok(());
    }
    let mut stream = 0;
    let code = cuda.stream_create(Some(&mut stream), NON_BLOCKING);
    must("cuStreamCreate", code)?;
    let memory = session.alloc(4 * PIECE)?;
    for (at, value) in (0..2).zip([3, 5]) {
        let code = cuda.set_bytes(memory + at * PIECE as u64, value, PIECE);
        must("cuMemsetD8", code)?;
    }
    must("cuCtxSynchronize", cuda.synchronize())?;
    let before = session.usage()?;
    let piece = |at: u64| memory + at * PIECE as u64;
    let (to, from, sizes) = ([piece(2), piece(3)], [piece(1), piece(0)], [PIECE; 2]);
    let batch = |to: &[u64; 2], starts: &[usize], stream: usize, failed: &mut usize| match version {
        SECOND.. => cuda.copy_batch(
            to.as_ptr(),
            from.as_ptr(),
            sizes.as_ptr(),
            2,
            Some(&CopyAttributes::IN_ORDER),
            starts.as_ptr(),
            starts.len(),
            stream,
        ),
        _ => cuda.copy_batch_v1(
            to.as_ptr(),
            from.as_ptr(),
            sizes.as_ptr(),
            2,
            Some(&CopyAttributes::IN_ORDER),
            starts.as_ptr(),
            starts.len(),
            Some(failed),
            stream,
        ),
    };
    let mut failed = 0;
    let code = batch(&to, &[0], stream, &mut failed);
    report.equals("two copies by one call", ResultCode::SUCCESS, code);
    must("cuCtxSynchronize", cuda.synchronize())?;
    let mut seen = vec![0_u8; 4 * PIECE];
    let code = cuda.copy_out(seen.as_mut_ptr().cast(), memory, seen.len());
    must("cuMemcpyDtoH", code)?;
    let firsts = [0, 1, 2, 3].map(|at| seen[at * PIECE]);
    report.equals("both are done", [3, 5, 5, 3], firsts);
    report.equals("they take no memory", before, session.usage()?);
    let code = batch(&to, &[1], stream, &mut failed);
    let fact = "attributes that do not begin with the first copy";
    report.equals(fact, ResultCode::INVALID_VALUE, code);
    let code = batch(&to, &[], stream, &mut failed);
    report.equals("copies without attributes", ResultCode::INVALID_VALUE, code);
    let code = batch(&to, &[0], 0, &mut failed);
    report.holds("no batch in the null stream", !code.succeeded(), code);
    if version < SECOND {
        let fact = "a failure that is no copy's";
        report.equals(fact, NONE, failed);
    } else {
        rows(report, &session, memory, stream)?;
    }
    must("cuStreamDestroy", cuda.stream_destroy(stream))?;
    must("cuMemFree_v2", cuda.free(memory))
}

/// Copies two bytes from each of four rows.
fn rows(
    report: &CaseReport,
    session: &DriverSession,
    memory: u64,
    stream: usize,
) -> Result<(), CaseError> {
    let cuda = &session.cuda;
    let sent: Vec<u8> = (0..16).collect();
    let code = cuda.copy_in(memory, sent.as_ptr().cast(), sent.len());
    must("cuMemcpyHtoD", code)?;
    let copy = CopyOfRows::new(memory + 64, (memory + 1, 4), 2, 4);
    let code = cuda.copy_rows_batch(1, Some(&copy), 0, stream);
    report.equals("rows by a batch", ResultCode::SUCCESS, code);
    must("cuCtxSynchronize", cuda.synchronize())?;
    let mut seen = [0_u8; 8];
    let code = cuda.copy_out(seen.as_mut_ptr().cast(), memory + 64, seen.len());
    must("cuMemcpyDtoH", code)?;
    report.equals("they come without gaps", [1, 2, 5, 6, 9, 10, 13, 14], seen);
    let short = CopyOfRows::new(memory + 64, (memory, 1), 2, 4);
    let code = cuda.copy_rows_batch(1, Some(&short), 0, stream);
    let fact = "rows that are longer than their distance";
    report.equals(fact, ResultCode::INVALID_VALUE, code);
    let code = cuda.copy_rows_batch(1, Some(&copy), 1, stream);
    report.equals("flags that there are not", ResultCode::INVALID_VALUE, code);
    Ok(())
}
