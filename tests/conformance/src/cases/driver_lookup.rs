//! `cuGetProcAddress`: which entry point a name, a version and a flag lead to.
//!
//! Substituting hooks by returned pointer rests on one thing that no document promises: that what
//! `cuGetProcAddress` returns is the address of an exported symbol. It is observed for every row.

use std::ffi::CString;

use crate::code::Code;
use crate::library::Cuda;
use crate::record::{Report, Stop};
use crate::session::must;

/// No per-thread variant; with per-thread variants.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;
/// `CUdriverProcAddressQueryResult`.
const FOUND: i32 = 0;
const NOT_FOUND: i32 = 1;
const TOO_OLD: i32 = 2;

/// Name, version, flag, and the symbol of that version in `cudaTypedefs.h`.
const ROWS: &[(&str, i32, u64, &str)] = &[
    ("cuMemAlloc", 2000, LEGACY, "cuMemAlloc"),
    ("cuMemAlloc", 3020, LEGACY, "cuMemAlloc_v2"),
    ("cuMemAlloc", 12000, PER_THREAD, "cuMemAlloc_v2"),
    ("cuMemFree", 2000, LEGACY, "cuMemFree"),
    ("cuMemFree", 12000, LEGACY, "cuMemFree_v2"),
    ("cuMemGetInfo", 2000, LEGACY, "cuMemGetInfo"),
    ("cuMemGetInfo", 12000, LEGACY, "cuMemGetInfo_v2"),
    ("cuDeviceTotalMem", 2000, LEGACY, "cuDeviceTotalMem"),
    ("cuDeviceTotalMem", 12000, LEGACY, "cuDeviceTotalMem_v2"),
    ("cuMemAllocPitch", 12000, LEGACY, "cuMemAllocPitch_v2"),
    ("cuMemAllocManaged", 6000, LEGACY, "cuMemAllocManaged"),
    ("cuCtxCreate", 3020, LEGACY, "cuCtxCreate_v2"),
    ("cuCtxCreate", 11040, LEGACY, "cuCtxCreate_v3"),
    ("cuCtxCreate", 12050, LEGACY, "cuCtxCreate_v4"),
    ("cuCtxDestroy", 12000, LEGACY, "cuCtxDestroy_v2"),
    (
        "cuDevicePrimaryCtxRelease",
        7000,
        LEGACY,
        "cuDevicePrimaryCtxRelease",
    ),
    (
        "cuDevicePrimaryCtxRelease",
        11000,
        LEGACY,
        "cuDevicePrimaryCtxRelease_v2",
    ),
    ("cuMemCreate", 10020, LEGACY, "cuMemCreate"),
    ("cuMemAllocAsync", 11020, LEGACY, "cuMemAllocAsync"),
    ("cuMemAllocAsync", 11020, PER_THREAD, "cuMemAllocAsync_ptsz"),
    ("cuMemFreeAsync", 11020, PER_THREAD, "cuMemFreeAsync_ptsz"),
    (
        "cuMemAllocFromPoolAsync",
        11020,
        PER_THREAD,
        "cuMemAllocFromPoolAsync_ptsz",
    ),
    ("cuMemcpyHtoD", 12000, LEGACY, "cuMemcpyHtoD_v2"),
    ("cuMemcpyHtoD", 12000, PER_THREAD, "cuMemcpyHtoD_v2_ptds"),
    ("cuLaunchKernel", 12000, LEGACY, "cuLaunchKernel"),
    ("cuLaunchKernel", 12000, PER_THREAD, "cuLaunchKernel_ptsz"),
    ("cuGetProcAddress", 11030, LEGACY, "cuGetProcAddress"),
    ("cuGetProcAddress", 12000, LEGACY, "cuGetProcAddress_v2"),
    ("cuInit", 12000, LEGACY, "cuInit"),
];

/// Names that exist only from a version on.
const NEW: &[(&str, i32)] = &[
    ("cuMemAllocAsync", 11010),
    ("cuMemCreate", 10010),
    ("cuMemAllocManaged", 5000),
];

/// What was answered.
pub(super) struct Answer {
    pub(super) code: Code,
    pub(super) address: usize,
    pub(super) status: i32,
}

/// Asks for one entry point.
pub(super) fn ask(cuda: &Cuda, name: &str, version: i32, flags: u64) -> Answer {
    let symbol = CString::new(name).expect("names have no NUL");
    let (mut address, mut status) = (1, -1);
    let code = cuda.lookup(
        symbol.as_ptr(),
        Some(&mut address),
        version,
        flags,
        Some(&mut status),
    );
    Answer {
        code,
        address,
        status,
    }
}

pub(super) fn run(report: &Report) -> Result<(), Stop> {
    let cuda = Cuda::open()?;
    must("cuInit", cuda.init(0))?;
    let mut newest = 0;
    must("cuDriverGetVersion", cuda.driver_version(Some(&mut newest)))?;
    for &(name, version, flags, symbol) in ROWS {
        if version <= newest {
            row(report, &cuda, name, version, flags, symbol);
        }
    }
    for &(name, version) in NEW {
        let answer = ask(&cuda, name, version, LEGACY);
        let fact = format!("{name} of {version}");
        report.equals(&format!("{fact}: status"), TOO_OLD, answer.status);
        report.equals(&format!("{fact}: address"), 0, answer.address);
        report.observed(&format!("{fact}: code"), answer.code);
    }
    wrong(report, &cuda, newest);
    Ok(())
}

fn row(report: &Report, cuda: &Cuda, name: &str, version: i32, flags: u64, symbol: &str) {
    let answer = ask(cuda, name, version, flags);
    let fact = format!("{name} of {version}, flag {flags}");
    report.equals(&format!("{fact}: code"), Code::SUCCESS, answer.code);
    report.equals(&format!("{fact}: status"), FOUND, answer.status);
    let exported = cuda.address(symbol);
    report.observed(
        &format!("{fact}: is the exported {symbol}"),
        exported.is_some_and(|address| address == answer.address),
    );
}

fn wrong(report: &Report, cuda: &Cuda, newest: i32) {
    for name in ["cuNoSuchFunction", "cuMemAlloc_v2", "malloc", ""] {
        let answer = ask(cuda, name, newest, LEGACY);
        let fact = format!("the name \"{name}\"");
        report.observed(&format!("{fact}: code"), answer.code);
        report.holds(
            &fact,
            answer.address == 0 || answer.address == 1,
            answer.address,
        );
        if answer.code.succeeded() {
            report.equals(&format!("{fact}: status"), NOT_FOUND, answer.status);
        }
    }
    let future = ask(cuda, "cuMemAlloc", newest + 1000, LEGACY);
    report.equals("a version of the future", Code::INVALID_VALUE, future.code);
    report.observed(
        "flags of no meaning",
        ask(cuda, "cuMemAlloc", newest, 64).code,
    );

    let mut address = 0;
    let code = cuda.lookup(std::ptr::null(), Some(&mut address), newest, 0, None);
    report.equals("no name", Code::INVALID_VALUE, code);
    let code = cuda.lookup(c"cuMemAlloc".as_ptr(), None, newest, 0, None);
    report.equals("nowhere to write", Code::INVALID_VALUE, code);
    let code = cuda.lookup(c"cuMemAlloc".as_ptr(), Some(&mut address), newest, 0, None);
    report.equals("the status is optional", Code::SUCCESS, code);
    let code = cuda.lookup_v1(c"cuMemAlloc".as_ptr(), Some(&mut address), newest, 0);
    report.equals("the first version of the function", Code::SUCCESS, code);
    let code = cuda.lookup_v1(c"cuNoSuchFunction".as_ptr(), Some(&mut address), newest, 0);
    report.observed("a wrong name in the first version", code);
}
