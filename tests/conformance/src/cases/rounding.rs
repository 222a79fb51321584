//! How much memory the driver takes from the card for an allocation, as NVML counts it.
//!
//! No document says how the driver rounds, and charging only the requested bytes counts too little. The simulation
//! follows what is known, and this case records the facts.

use serde_json::json;

use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB, must};

const KIB: usize = 1 << 10;

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    report.observed("NVML names this process", session.is_visible()?);
    small(report, &session)?;
    for bytes in [
        512 * KIB,
        MIB,
        MIB + 1,
        2 * MIB,
        2 * MIB + 1,
        3 * MIB,
        33 * MIB,
    ] {
        alone(report, &session, bytes)?;
    }
    Ok(())
}

/// How many of the smallest allocations fit into the block of the first one.
fn small(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let start = session.usage()?;
    let mut held = vec![session.alloc(1)?];
    let first = session.usage()?;
    report.observed("the first byte takes", first - start);
    while session.usage()? == first && held.len() < 16384 {
        for _ in 0..64 {
            held.push(session.alloc(1)?);
        }
    }
    report.observed(
        "single bytes until more is taken, to the next 64",
        held.len(),
    );
    report.observed("and then takes", session.usage()? - first);
    let step = held[1].abs_diff(held[0]);
    report.observed("bytes from one to the next", step);
    for address in held {
        must("cuMemFree_v2", session.cuda.free(address))?;
    }
    report.observed("still taken when all are freed", session.usage()? - start);
    Ok(())
}

fn alone(report: &CaseReport, session: &DriverSession, bytes: usize) -> Result<(), CaseError> {
    let mut address = 0;
    let (free_before, _) = session.memory_info()?;
    let grown = session.growth(|| {
        address = session.alloc(bytes)?;
        Ok(())
    })?;
    let (free_after, _) = session.memory_info()?;
    let freed = session.growth(|| must("cuMemFree_v2", session.cuda.free(address)))?;
    report.observed(
        &format!("{bytes} bytes"),
        json!({
            "take": grown,
            "lower_free_by": free_before as i64 - free_after as i64,
            "freeing_changes_by": freed,
        }),
    );
    Ok(())
}
