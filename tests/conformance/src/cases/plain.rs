//! `cuMemAlloc` and `cuMemFree`.

use crate::code::ResultCode;
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB, UNTOUCHED, must};

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    wrong_sizes(report, &session)?;
    good_memory(report, &session)?;
    wrong_frees(report, &session)
}

fn wrong_sizes(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let mut address = UNTOUCHED;
    let code = session.cuda.alloc(Some(&mut address), 0);
    report.equals("no bytes", ResultCode::INVALID_VALUE, code);

    let (_, total) = session.memory_info()?;
    let before = session.usage()?;
    for (fact, bytes) in [
        ("more than the card has", total + MIB),
        ("four times what the card has", total * 4),
    ] {
        address = UNTOUCHED;
        let code = session.cuda.alloc(Some(&mut address), bytes);
        report.equals(fact, ResultCode::OUT_OF_MEMORY, code);
        report.observed(
            &format!("{fact}: the output is untouched"),
            address == UNTOUCHED,
        );
    }
    let after = session.usage()?;
    report.observed("refusals change what NVML counts by", after - before);
    let usable = session.alloc(4096)?;
    must("cuMemFree_v2", session.cuda.free(usable))
}

fn good_memory(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let bytes = 3 * MIB + 5;
    let address = session.alloc(bytes)?;
    report.holds(
        "an allocation is aligned to 256 bytes",
        address.is_multiple_of(256),
        address % 256,
    );
    session.keeps_data(report, "bytes come back as they were sent", address, bytes);

    let (mut base, mut extent) = (0, 0);
    let inside = address + bytes as u64 - 1;
    let code = session
        .cuda
        .address_range(Some(&mut base), Some(&mut extent), inside);
    report.equals(
        "the range around a byte is found",
        ResultCode::SUCCESS,
        code,
    );
    report.equals(
        "the range starts with the allocation",
        true,
        base == address,
    );
    report.equals("the range is what was asked for", bytes, extent);
    must("cuMemsetD8_v2", session.cuda.set_bytes(address, 3, bytes))?;
    must("cuMemFree_v2", session.cuda.free(address))?;

    let growth = session.growth(|| session.alloc(64 * MIB).map(drop))?;
    report.holds(
        "NVML counts at least what was asked for",
        growth >= 64 * MIB as i64,
        growth,
    );
    Ok(())
}

fn wrong_frees(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let address = session.alloc(2 * MIB)?;
    let code = session.cuda.free(address + 512);
    report.observed("a free of an address inside", code);
    if !code.succeeded() {
        must("cuMemFree_v2", session.cuda.free(address))?;
    }
    let code = session.cuda.free(address);
    report.equals("a second free", ResultCode::INVALID_VALUE, code);
    let code = session.cuda.free(0x1000);
    report.equals("a free of no allocation", ResultCode::INVALID_VALUE, code);
    report.observed("a free of NULL", session.cuda.free(0));
    Ok(())
}
