//! Arrays, whose size is in elements: a format, channels, and rows that may be none.

use crate::code::Code;
use crate::layout::{ArrayDescriptor, BYTES, FLOATS};
use crate::record::{Report, Stop};
use crate::session::{MIB, Session, must};

/// 64 MiB as 2048 rows of 2048 elements of four floats.
const LARGE: ArrayDescriptor = ArrayDescriptor {
    width: 2048,
    height: 2048,
    format: FLOATS,
    channels: 4,
};

pub(super) fn run(report: &Report) -> Result<(), Stop> {
    let session = Session::start()?;
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
        report.equals(fact, Code::INVALID_VALUE, code);
    }
    large(report, &session)?;
    flat(report, &session)
}

fn large(report: &Report, session: &Session) -> Result<(), Stop> {
    let (start, mut array) = (session.usage()?, 0);
    let code = session.cuda.array_create(Some(&mut array), Some(&LARGE));
    must("cuArrayCreate_v2", code)?;
    let grown = session.usage()? - start;
    report.holds("64 MiB are counted", grown >= 64 * MIB as i64, grown);
    report.observed("64 MiB take", grown);

    let mut back = ArrayDescriptor { width: 0, ..LARGE };
    let code = session.cuda.array_descriptor(Some(&mut back), array);
    report.equals("an array says what it is", Code::SUCCESS, code);
    let same = (back.width, back.height, back.channels) == (LARGE.width, LARGE.height, 4);
    report.equals("it is what was asked for", true, same);
    must("cuArrayDestroy", session.cuda.array_destroy(array))?;
    let left = session.usage()? - start;
    report.holds("its end frees it", left < 64 * MIB as i64, left);
    Ok(())
}

fn flat(report: &Report, session: &Session) -> Result<(), Stop> {
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
    report.equals("an array of one dimension has no rows", Code::SUCCESS, code);
    report.observed("64 KiB take", session.usage()? - before);
    must("cuArrayDestroy", session.cuda.array_destroy(array))
}
