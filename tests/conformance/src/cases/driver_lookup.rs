//! `cuGetProcAddress`: the entry point for a name, a version and flags.
//!
//! The hooks replace functions by the pointer that `cuGetProcAddress` returns. This works only if the pointer is the
//! address of an exported symbol, which no document promises. So every row records it.
//!
//! No card is needed. Drivers before CUDA 12 have only the function's first version, which returns no status.

use std::ffi::CString;

use crate::code::ResultCode;
use crate::library::Cuda;
use crate::record::{CaseError, CaseReport};
use crate::session::{must, start_without_card};

/// The flags for functions without and with per-thread default streams.
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

/// Names that exist only since a version.
const NEW: &[(&str, i32)] = &[
    ("cuMemAllocAsync", 11010),
    ("cuMemCreate", 10010),
    ("cuMemAllocManaged", 5000),
];

/// The value of an output that was not written.
const UNTOUCHED: usize = 1;

/// The answer to a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LookupAnswer {
    pub(super) code: ResultCode,
    pub(super) address: usize,
    /// None if the driver returns no status.
    pub(super) status: Option<i32>,
}

impl LookupAnswer {
    /// Whether there is an entry point to call.
    pub(super) fn is_found(self) -> bool {
        self.code.succeeded() && self.address != 0
    }
}

/// Looks up one entry point, by the newest version of the function that the driver has.
pub(super) fn ask(cuda: &Cuda, name: &str, version: i32, flags: u64) -> LookupAnswer {
    let symbol = CString::new(name).expect("names have no NUL");
    let (mut address, mut status) = (UNTOUCHED, -1);
    let code = cuda.lookup(
        symbol.as_ptr(),
        Some(&mut address),
        version,
        flags,
        Some(&mut status),
    );
    match code {
        ResultCode::ABSENT => ask_first(cuda, name, version, flags),
        code => LookupAnswer {
            code,
            address,
            status: Some(status),
        },
    }
}

/// Uses the first version of the function.
fn ask_first(cuda: &Cuda, name: &str, version: i32, flags: u64) -> LookupAnswer {
    let symbol = CString::new(name).expect("names have no NUL");
    let mut address = UNTOUCHED;
    let code = cuda.lookup_v1(symbol.as_ptr(), Some(&mut address), version, flags);
    LookupAnswer {
        code,
        address,
        status: None,
    }
}

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let cuda = Cuda::open()?;
    start_without_card(report, &cuda)?;
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
        report.holds(
            &format!("{fact}: not found"),
            !answer.is_found(),
            answer.code,
        );
        if let Some(status) = answer.status {
            report.equals(&format!("{fact}: status"), TOO_OLD, status);
            report.equals(&format!("{fact}: address"), 0, answer.address);
        }
        report.observed(&format!("{fact}: code"), answer.code);
    }
    wrong(report, &cuda, newest);
    odd(report, &cuda, newest);
    Ok(())
}

fn row(report: &CaseReport, cuda: &Cuda, name: &str, version: i32, flags: u64, symbol: &str) {
    let answer = ask(cuda, name, version, flags);
    let fact = format!("{name} of {version}, flag {flags}");
    report.equals(&format!("{fact}: code"), ResultCode::SUCCESS, answer.code);
    if let Some(status) = answer.status {
        report.equals(&format!("{fact}: status"), FOUND, status);
    }
    let exported = cuda.address(symbol);
    report.observed(
        &format!("{fact}: is the exported {symbol}"),
        exported.is_some_and(|address| address == answer.address),
    );
}

/// Names that do not exist, and optional outputs.
fn wrong(report: &CaseReport, cuda: &Cuda, newest: i32) {
    for name in ["cuNoSuchFunction", "cuMemAlloc_v2", "malloc", ""] {
        let answer = ask(cuda, name, newest, LEGACY);
        let fact = format!("the name \"{name}\"");
        report.observed(&format!("{fact}: code"), answer.code);
        report.holds(
            &fact,
            matches!(answer.address, 0 | UNTOUCHED),
            answer.address,
        );
        if answer.code.succeeded() {
            report.equals(&format!("{fact}: status"), Some(NOT_FOUND), answer.status);
        }
    }
    let mut address = 0;
    let code = cuda.lookup(c"cuMemAlloc".as_ptr(), Some(&mut address), newest, 0, None);
    if code != ResultCode::ABSENT {
        report.equals("the status is optional", ResultCode::SUCCESS, code);
    }
    let first = ask_first(cuda, "cuMemAlloc", newest, 0);
    report.equals(
        "the first version of the function",
        ResultCode::SUCCESS,
        first.code,
    );
}

/// Undocumented cases. Drivers 470 to 555 treat a version that is newer than their own or below 0 as the newest. They
/// treat flags 3 as 2. They find no per-thread functions before version 7000. If the first version of the function
/// finds nothing, it leaves the output unchanged.
fn odd(report: &CaseReport, cuda: &Cuda, newest: i32) {
    let now = ask(cuda, "cuMemAlloc", newest, LEGACY);
    for (fact, version) in [
        ("a version of the future", newest + 1000),
        ("a version below 0", -1),
    ] {
        let answer = ask(cuda, "cuMemAlloc", version, LEGACY);
        report.observed(fact, answer.code);
        report.observed(&format!("{fact}: as of the newest"), answer == now);
    }
    let both = ask(cuda, "cuMemcpyHtoD", newest, LEGACY | PER_THREAD);
    let per_thread = ask(cuda, "cuMemcpyHtoD", newest, PER_THREAD);
    report.observed("both flags", both.code);
    report.observed("both flags: as for per-thread streams", both == per_thread);
    let meaningless = ask(cuda, "cuMemAlloc", newest, 64);
    report.observed("flags of no meaning", meaningless.code);
    report.observed(
        "flags of no meaning: nothing is written",
        meaningless.address == UNTOUCHED,
    );
    let early = ask(cuda, "cuMemcpyHtoD", 6050, PER_THREAD);
    report.observed("per-thread streams before 7000", early.code);
    report.observed("per-thread streams before 7000: status", early.status);
    let first = ask_first(cuda, "cuNoSuchFunction", newest, 0);
    report.observed("a wrong name in the first version", first.code);
    report.observed(
        "a wrong name in the first version: nothing is written",
        first.address == UNTOUCHED,
    );
}
