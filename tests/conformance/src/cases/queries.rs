//! Four queries for the same card's memory.

use serde_json::json;

use crate::code::ResultCode;
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB, must};

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let (free, total) = session.memory_info()?;
    report.holds("free is not more than total", free <= total, [free, total]);
    let mut whole = 0;
    let code = session.cuda.device_total(Some(&mut whole), session.device);
    must("cuDeviceTotalMem_v2", code)?;
    report.equals(
        "cuDeviceTotalMem is the total of cuMemGetInfo",
        total,
        whole,
    );
    let mut bytes = 0;
    let code = session.cuda.device_total(Some(&mut bytes), 4096);
    report.equals("the memory of no card", ResultCode::INVALID_DEVICE, code);

    let (first, second) = session.card_memory()?;
    report.holds(
        "NVML's total is used and free",
        first.total == first.used + first.free,
        [first.total, first.used, first.free],
    );
    report.holds(
        "NVML's second total is reserved, used and free",
        second.total == second.reserved + second.used + second.free,
        [second.total, second.reserved, second.used, second.free],
    );
    report.observed(
        "NVML's used contains what is reserved",
        first.used == second.used + second.reserved,
    );
    report.observed(
        "this card",
        json!({
            "cuda_total": total,
            "nvml_total": first.total,
            "nvml_reserved": second.reserved,
            "cuda_total_is_nvml_total_less_reserved": total as u64 == second.total - second.reserved,
            "cuda_free_less_nvml_free": free as i64 - second.free as i64,
        }),
    );
    moving(report, &session)
}

/// An allocation changes all answers by the same amount.
fn moving(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let (free, total) = session.memory_info()?;
    let (nvml, _) = session.card_memory()?;
    let address = session.alloc(256 * MIB)?;
    let (free_then, total_then) = session.memory_info()?;
    let (nvml_then, _) = session.card_memory()?;
    report.equals("an allocation leaves the total alone", total, total_then);
    let moved = free as i64 - free_then as i64;
    report.holds(
        "it lowers free by its size",
        moved >= 256 * MIB as i64,
        moved,
    );
    let nvml_moved = nvml.free as i64 - nvml_then.free as i64;
    report.holds(
        "it lowers NVML's free by its size",
        nvml_moved >= 256 * MIB as i64,
        nvml_moved,
    );
    report.observed("both move alike", moved == nvml_moved);
    must("cuMemFree_v2", session.cuda.free(address))?;
    let (free_after, _) = session.memory_info()?;
    report.holds(
        "freeing makes room again",
        free_after > free_then,
        free_after - free_then,
    );

    let most = free_after / 10 * 9;
    let address = session.alloc(most)?;
    report.holds("nine tenths of what is free can be had", address != 0, most);
    must("cuMemFree_v2", session.cuda.free(address))
}
