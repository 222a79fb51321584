//! Stream-ordered allocation: what a pool reserves, how much of it is used, and when it shrinks.

use crate::code::ResultCode;
use crate::layout::PoolProperties;
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB, must};

/// `CUmemPool_attribute`.
const THRESHOLD: i32 = 4;
const RESERVED: i32 = 5;
const RESERVED_HIGH: i32 = 6;
const USED: i32 = 7;
const USED_HIGH: i32 = 8;

/// A pool and the queries about it.
struct PoolProbe<'a> {
    session: &'a DriverSession,
    pool: usize,
}

impl PoolProbe<'_> {
    fn get(&self, attribute: i32) -> Result<u64, CaseError> {
        let mut value = 0;
        let code = self
            .session
            .cuda
            .pool_get(self.pool, attribute, Some(&mut value));
        must("cuMemPoolGetAttribute", code)?;
        Ok(value)
    }

    fn set(&self, attribute: i32, mut value: u64) -> ResultCode {
        self.session
            .cuda
            .pool_set(self.pool, attribute, Some(&mut value))
    }

    fn alloc(&self, bytes: usize) -> Result<u64, CaseError> {
        let mut address = 0;
        let code = self
            .session
            .cuda
            .alloc_from_pool(Some(&mut address), bytes, self.pool, 0);
        must("cuMemAllocFromPoolAsync", code)?;
        must("cuCtxSynchronize", self.session.cuda.synchronize())?;
        Ok(address)
    }

    /// Frees in stream order and synchronizes the stream.
    fn free(&self, address: u64) -> Result<(), CaseError> {
        must("cuMemFreeAsync", self.session.cuda.free_async(address, 0))?;
        must("cuCtxSynchronize", self.session.cuda.synchronize())
    }
}

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let mut pool = 0;
    let code = session.cuda.default_pool(Some(&mut pool), session.device);
    must("cuDeviceGetDefaultMemPool", code)?;
    let pool = PoolProbe {
        session: &session,
        pool,
    };
    let mut address = 0;
    let code = session.cuda.alloc_async(Some(&mut address), 0, 0);
    report.equals("no bytes", ResultCode::INVALID_VALUE, code);
    let (_, total) = session.memory_info()?;
    let code = session.cuda.alloc_async(Some(&mut address), total * 2, 0);
    report.equals("more than the card has", ResultCode::OUT_OF_MEMORY, code);

    report.equals("the release threshold is zero", 0, pool.get(THRESHOLD)?);
    growing(report, &pool)?;
    shrinking(report, &pool)?;
    high_marks(report, &pool)?;
    let code = session.cuda.pool_destroy(pool.pool);
    report.equals(
        "the default pool is not destroyed",
        ResultCode::INVALID_VALUE,
        code,
    );
    Ok(())
}

fn growing(report: &CaseReport, pool: &PoolProbe<'_>) -> Result<(), CaseError> {
    let session = pool.session;
    let before = session.usage()?;
    let small = pool.alloc(1)?;
    let (used, reserved) = (pool.get(USED)?, pool.get(RESERVED)?);
    report.holds(
        "used is not more than reserved",
        used <= reserved,
        [used, reserved],
    );
    report.observed("one byte uses", used);
    report.observed("one byte reserves", reserved);
    report.observed("NVML counts for it", session.usage()? - before);

    let large = pool.alloc(33 * MIB)?;
    let (used, reserved) = (pool.get(USED)?, pool.get(RESERVED)?);
    report.holds("33 MiB are reserved", reserved >= 33 * MIB as u64, reserved);
    report.observed("with 33 MiB more it uses", used);
    report.observed("with 33 MiB more it reserves", reserved);
    session.keeps_data(report, "it keeps data", large, 33 * MIB);
    pool.free(small)?;
    must("cuMemFree_v2", session.cuda.free(large))
}

fn shrinking(report: &CaseReport, pool: &PoolProbe<'_>) -> Result<(), CaseError> {
    let session = pool.session;
    must("cuCtxSynchronize", session.cuda.synchronize())?;
    report.equals("nothing is used when all is freed", 0, pool.get(USED)?);
    let reserved = pool.get(RESERVED)?;
    report.equals("nothing is kept below a threshold of zero", 0, reserved);

    must("cuMemPoolSetAttribute", pool.set(THRESHOLD, u64::MAX))?;
    let before = session.usage()?;
    let address = pool.alloc(64 * MIB)?;
    pool.free(address)?;
    let reserved = pool.get(RESERVED)?;
    let enough = 64 * MIB as u64;
    report.holds(
        "a high threshold keeps memory",
        reserved >= enough,
        reserved,
    );
    let held = session.usage()? - before;
    report.holds("kept memory is counted", held >= enough as i64, held);

    must("cuMemPoolTrimTo", session.cuda.pool_trim(pool.pool, 0))?;
    report.equals("trimming to nothing keeps nothing", 0, pool.get(RESERVED)?);
    report.observed("NVML counts after trimming", session.usage()? - before);
    let address = pool.alloc(64 * MIB)?;
    must("cuMemPoolTrimTo", session.cuda.pool_trim(pool.pool, 0))?;
    let reserved = pool.get(RESERVED)?;
    report.holds("memory in use is not trimmed", reserved >= enough, reserved);
    must("cuMemPoolSetAttribute", pool.set(THRESHOLD, 0))?;
    pool.free(address)
}

fn high_marks(report: &CaseReport, pool: &PoolProbe<'_>) -> Result<(), CaseError> {
    let (used, reserved) = (pool.get(USED_HIGH)?, pool.get(RESERVED_HIGH)?);
    let enough = 64 * MIB as u64;
    report.holds(
        "the marks stay high",
        used >= enough && reserved >= enough,
        [used, reserved],
    );
    for (fact, attribute) in [("used", USED_HIGH), ("reserved", RESERVED_HIGH)] {
        let code = pool.set(attribute, 1);
        report.equals(
            &format!("the mark of {fact} set to one"),
            ResultCode::INVALID_VALUE,
            code,
        );
        let code = pool.set(attribute, 0);
        report.equals(
            &format!("the mark of {fact} set to zero"),
            ResultCode::SUCCESS,
            code,
        );
    }
    report.equals(
        "the mark of used is reset",
        pool.get(USED)?,
        pool.get(USED_HIGH)?,
    );
    Ok(())
}

fn create(session: &DriverSession) -> Result<PoolProbe<'_>, CaseError> {
    let properties = PoolProperties::new(session.location());
    let mut pool = 0;
    let code = session.cuda.pool_create(Some(&mut pool), Some(&properties));
    must("cuMemPoolCreate", code)?;
    Ok(PoolProbe { session, pool })
}

pub(super) fn created(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let pool = create(&session)?;
    let before = session.usage()?;
    report.equals("a new pool reserves nothing", 0, pool.get(RESERVED)?);
    let address = pool.alloc(40 * MIB)?;
    let grown = session.usage()? - before;
    report.holds("NVML counts what it holds", grown >= 40 * MIB as i64, grown);
    pool.free(address)?;
    let code = session.cuda.free(address);
    report.equals("a second free", ResultCode::INVALID_VALUE, code);
    let code = session.cuda.pool_destroy(pool.pool);
    report.equals("it is destroyed", ResultCode::SUCCESS, code);
    report.observed("NVML counts after its end", session.usage()? - before);
    Ok(())
}

/// `cuda.h` says that `cuMemPoolDestroy` returns at once, and that the pool's memory is released when no allocation is
/// left.
pub(super) fn destroyed_in_use(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let pool = create(&session)?;
    let before = session.usage()?;
    let first = pool.alloc(40 * MIB)?;
    let last = pool.alloc(40 * MIB)?;
    let code = session.cuda.pool_destroy(pool.pool);
    report.equals("it is destroyed", ResultCode::SUCCESS, code);
    let held = session.usage()? - before;
    let enough = 80 * MIB as i64;
    report.holds("NVML counts what it still holds", held >= enough, held);
    session.keeps_data(report, "what lives in it keeps data", last, 40 * MIB);
    pool.free(first)?;
    report.observed("NVML counts with one freed", session.usage()? - before);
    must("cuMemFree_v2", session.cuda.free(last))?;
    must("cuCtxSynchronize", session.cuda.synchronize())?;
    let held = session.usage()? - before;
    report.holds("NVML counts it no longer", held < 40 * MIB as i64, held);
    Ok(())
}
