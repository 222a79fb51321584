//! `cuMemAllocPitch`: rows that the driver may widen.

use crate::code::ResultCode;
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB, UNTOUCHED, must};

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let (mut address, mut pitch) = (UNTOUCHED, 0);
    let mut ask = |width, height, element| {
        let code =
            session
                .cuda
                .alloc_pitch(Some(&mut address), Some(&mut pitch), width, height, element);
        (code, address, pitch)
    };
    for element in [0, 1, 3, 32] {
        let (code, ..) = ask(64, 64, element);
        let fact = format!("elements of {element} bytes");
        report.equals(&fact, ResultCode::INVALID_VALUE, code);
    }
    report.equals(
        "rows of no bytes",
        ResultCode::INVALID_VALUE,
        ask(0, 64, 4).0,
    );
    report.equals("no rows", ResultCode::INVALID_VALUE, ask(64, 0, 4).0);

    for width in [1, 100, 512, 1000, 4097] {
        let (code, address, pitch) = ask(width, 3, 4);
        must("cuMemAllocPitch_v2", code)?;
        report.holds(
            &format!("rows of {width} bytes fit their pitch"),
            pitch >= width,
            pitch,
        );
        report.observed(&format!("the pitch of rows of {width} bytes"), pitch);
        must("cuMemFree_v2", session.cuda.free(address))?;
    }

    let before = session.usage()?;
    let (code, address, pitch) = ask(1000, 65536, 16);
    must("cuMemAllocPitch_v2", code)?;
    let grown = session.usage()? - before;
    let bytes = pitch * 65536;
    report.holds("NVML counts all rows", grown >= bytes as i64, grown);
    session.keeps_data(
        report,
        "the last row keeps data",
        address + (bytes - pitch) as u64,
        1000,
    );
    must("cuMemFree_v2", session.cuda.free(address))?;
    let (_, total) = session.memory_info()?;
    let (code, ..) = ask(total / MIB, 2 * MIB, 4);
    report.equals(
        "more rows than the card has",
        ResultCode::OUT_OF_MEMORY,
        code,
    );
    Ok(())
}
