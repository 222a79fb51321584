//! NULL as an output. Programs pass it by mistake and, for optional outputs, on purpose. The driver's behaviour must be
//! the same with and without a hook in between.

use crate::code::ResultCode;
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB};

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let (cuda, device) = (&session.cuda, session.device);
    let (mut free, mut total, mut address, mut pitch) = (0, 0, 0, 0);

    for (fact, code) in [
        ("cuDriverGetVersion", cuda.driver_version(None)),
        ("cuDeviceGetCount", cuda.device_count(None)),
        ("cuDeviceGet", cuda.device(None, 0)),
        ("cuDeviceTotalMem", cuda.device_total(None, device)),
        (
            "cuDevicePrimaryCtxRetain",
            cuda.primary_retain(None, device),
        ),
        ("cuCtxCreate", cuda.context_create(None, 0, device)),
        ("cuMemAlloc", cuda.alloc(None, MIB)),
        ("cuMemAllocManaged", cuda.alloc_managed(None, MIB, 1)),
        ("cuMemAllocAsync", cuda.alloc_async(None, MIB, 0)),
        ("cuDeviceGetDefaultMemPool", cuda.default_pool(None, device)),
        ("cuMemPoolCreate", cuda.pool_create(None, None)),
        ("cuMemCreate", cuda.handle_create(None, 2 * MIB, None, 0)),
        ("cuMemAddressReserve", cuda.reserve(None, 2 * MIB, 0, 0, 0)),
        (
            "cuMemGetAllocationGranularity",
            cuda.granularity(None, None, 0),
        ),
    ] {
        report.equals(fact, ResultCode::INVALID_VALUE, code);
    }
    for (fact, code) in [
        ("cuMemGetInfo", cuda.memory_info(None, None)),
        (
            "cuMemGetInfo without total",
            cuda.memory_info(Some(&mut free), None),
        ),
        (
            "cuMemGetInfo without free",
            cuda.memory_info(None, Some(&mut total)),
        ),
        (
            "cuMemAllocPitch without pitch",
            cuda.alloc_pitch(Some(&mut address), None, 64, 64, 4),
        ),
        (
            "cuMemAllocPitch without address",
            cuda.alloc_pitch(None, Some(&mut pitch), 64, 64, 4),
        ),
    ] {
        report.observed(fact, code);
    }
    let address = session.alloc(MIB)?;
    report.equals(
        "cuMemGetAddressRange needs neither",
        ResultCode::SUCCESS,
        cuda.address_range(None, None, address),
    );
    Ok(())
}
