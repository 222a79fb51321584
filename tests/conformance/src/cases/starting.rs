//! Calls before initialisation, and errors that programs probe for.

use std::ptr;

use crate::code::ResultCode;
use crate::library::{Cuda, Nvml};
use crate::record::{CaseError, CaseReport};
use crate::session::{must, uuid_text};

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let (cuda, nvml) = (Cuda::open()?, Nvml::open()?);
    before_init(report, &cuda, &nvml);

    report.equals(
        "cuInit with a flag",
        ResultCode::INVALID_VALUE,
        cuda.init(1),
    );
    must("cuInit", cuda.init(0))?;
    report.equals("cuInit again", ResultCode::SUCCESS, cuda.init(0));

    let mut count = 0;
    must("cuDeviceGetCount", cuda.device_count(Some(&mut count)))?;
    report.holds("there is a card", count > 0, count);
    let mut device = 0;
    for (fact, ordinal) in [
        ("a card behind the last", count),
        ("a card before the first", -1),
    ] {
        let code = cuda.device(Some(&mut device), ordinal);
        report.equals(fact, ResultCode::INVALID_DEVICE, code);
    }
    must("cuDeviceGet", cuda.device(Some(&mut device), 0))?;
    without_context(report, &cuda, device);
    same_card(report, &cuda, &nvml, device)
}

fn before_init(report: &CaseReport, cuda: &Cuda, nvml: &Nvml) {
    let (mut count, mut address, mut version) = (0, 0, 0);
    let code = cuda.device_count(Some(&mut count));
    report.equals(
        "cuDeviceGetCount before cuInit",
        ResultCode::NOT_INITIALIZED,
        code,
    );
    let code = cuda.alloc(Some(&mut address), 4096);
    report.equals(
        "cuMemAlloc before cuInit",
        ResultCode::NOT_INITIALIZED,
        code,
    );
    let code = cuda.driver_version(Some(&mut version));
    report.equals(
        "cuDriverGetVersion before cuInit",
        ResultCode::SUCCESS,
        code,
    );
    report.observed("the driver's CUDA version", version);
    let mut cards = 0;
    // NVML's errors have numbers of their own: 1 is NVML_ERROR_UNINITIALIZED.
    let code = nvml.count(Some(&mut cards));
    report.equals("NVML's count before nvmlInit", 1, code.0);
}

fn without_context(report: &CaseReport, cuda: &Cuda, device: i32) {
    let (mut address, mut free, mut total) = (0, 0, 0);
    let code = cuda.alloc(Some(&mut address), 4096);
    report.equals(
        "cuMemAlloc without a context",
        ResultCode::INVALID_CONTEXT,
        code,
    );
    let code = cuda.memory_info(Some(&mut free), Some(&mut total));
    report.equals(
        "cuMemGetInfo without a context",
        ResultCode::INVALID_CONTEXT,
        code,
    );
    let code = cuda.device_total(Some(&mut total), device);
    report.equals(
        "cuDeviceTotalMem without a context",
        ResultCode::SUCCESS,
        code,
    );
    let mut current = 1;
    let code = cuda.context_current(Some(&mut current));
    report.equals(
        "cuCtxGetCurrent without a context",
        ResultCode::SUCCESS,
        code,
    );
    report.equals("the current context without a context", 0, current);
    let code = cuda.context_pop(Some(&mut current));
    report.equals(
        "cuCtxPopCurrent of nothing",
        ResultCode::INVALID_CONTEXT,
        code,
    );
}

fn same_card(report: &CaseReport, cuda: &Cuda, nvml: &Nvml, device: i32) -> Result<(), CaseError> {
    let (mut uuid, mut card, mut value) = ([0; 16], 0, 0);
    must("nvmlInit_v2", nvml.init())?;
    must("cuDeviceGetUuid", cuda.device_uuid(Some(&mut uuid), device))?;
    let code = nvml.by_uuid(uuid_text(uuid).as_ptr(), Some(&mut card));
    report.equals("NVML knows the card by CUDA's UUID", 0, code.0);
    let code = nvml.by_uuid(
        c"GPU-00000000-0000-0000-0000-000000000000".as_ptr(),
        Some(&mut card),
    );
    // 6 is NVML_ERROR_NOT_FOUND.
    report.equals("a UUID of no card", 6, code.0);
    let code = nvml.by_uuid(ptr::null(), Some(&mut card));
    // 2 is NVML_ERROR_INVALID_ARGUMENT.
    report.equals("no UUID", 2, code.0);
    // 102 and 115: virtual memory management, memory pools.
    for (fact, attribute) in [("virtual memory", 102), ("memory pools", 115)] {
        let code = cuda.device_attribute(Some(&mut value), attribute, device);
        report.equals(
            &format!("the attribute for {fact}"),
            ResultCode::SUCCESS,
            code,
        );
        report.observed(&format!("the card has {fact}"), value);
    }
    Ok(())
}
