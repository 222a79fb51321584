//! Arrays. Their size is in elements: a format, channels, and rows. An array of one dimension has no rows.

use crate::code::ResultCode;
use crate::layout::{ArrayDescriptor, BYTES, FLOATS};
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB, must};

/// 64 MiB as 2048 rows of 2048 elements of four floats.
const LARGE: ArrayDescriptor = ArrayDescriptor {
    width: 2048,
    height: 2048,
    format: FLOATS,
    channels: 4,
};

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let mut array = 0;
    for (fact, wrong) in [
        ("rows of nothing", ArrayDescriptor { width: 0, ..LARGE }),
        (
            "three channels",
            ArrayDescriptor {
                channels: 3,
                ..LARGE
            },
        ),
        ("no format", ArrayDescriptor { format: 0, ..LARGE }),
    ] {
        let code = session.cuda.array_create(Some(&mut array), Some(&wrong));
        report.equals(fact, ResultCode::INVALID_VALUE, code);
    }
    large(report, &session)?;
    flat(report, &session)
}

fn large(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let (start, mut array) = (session.usage()?, 0);
    let code = session.cuda.array_create(Some(&mut array), Some(&LARGE));
    must("cuArrayCreate_v2", code)?;
    let grown = session.usage()? - start;
    report.holds("64 MiB are counted", grown >= 64 * MIB as i64, grown);
    report.observed("64 MiB take", grown);

    let mut back = ArrayDescriptor { width: 0, ..LARGE };
    let code = session.cuda.array_descriptor(Some(&mut back), array);
    report.equals("an array says what it is", ResultCode::SUCCESS, code);
    let same = (back.width, back.height, back.channels) == (LARGE.width, LARGE.height, 4);
    report.equals("it is what was asked for", true, same);
    must("cuArrayDestroy", session.cuda.array_destroy(array))?;
    let left = session.usage()? - start;
    report.holds("its end frees it", left < 64 * MIB as i64, left);
    Ok(())
}

fn flat(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let descriptor = ArrayDescriptor {
        width: 65536,
        height: 0,
        format: BYTES,
        channels: 1,
    };
    let mut array = 0;
    let before = session.usage()?;
    let code = session
        .cuda
        .array_create(Some(&mut array), Some(&descriptor));
    report.equals(
        "an array of one dimension has no rows",
        ResultCode::SUCCESS,
        code,
    );
    report.observed("64 KiB take", session.usage()? - before);
    must("cuArrayDestroy", session.cuda.array_destroy(array))
}
