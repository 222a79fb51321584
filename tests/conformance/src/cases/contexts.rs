//! Contexts: what keeps one alive, what ends with it, and what it costs.

use crate::code::ResultCode;
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB, must};

/// The memory in a context that is about to end.
const HELD: usize = 96 * MIB;

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::open()?;
    retained(report, &session)?;
    reset(report, &session)?;
    created(report, &session)
}

fn is_active(session: &DriverSession) -> Result<bool, CaseError> {
    let (mut flags, mut active) = (0, -1);
    let code = session
        .cuda
        .primary_state(session.device, Some(&mut flags), Some(&mut active));
    must("cuDevicePrimaryCtxGetState", code)?;
    Ok(active != 0)
}

fn retained(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let cuda = &session.cuda;
    report.equals("no one has retained it yet", false, is_active(session)?);
    let code = cuda.primary_release(session.device);
    report.equals(
        "a release of what none retained",
        ResultCode::INVALID_CONTEXT,
        code,
    );

    let first = session.retain()?;
    let second = session.retain()?;
    report.equals("both retained the same", true, first == second);
    must(
        "cuDevicePrimaryCtxRelease",
        cuda.primary_release(session.device),
    )?;
    report.equals("it lives with one of two", true, is_active(session)?);
    let address = session.alloc(HELD)?;
    let (named, before) = (session.is_visible()?, session.usage()?);
    must(
        "cuDevicePrimaryCtxRelease",
        cuda.primary_release(session.device),
    )?;
    report.equals("it ends with the last", false, is_active(session)?);
    let freed = before - session.usage_if(named)?;
    report.holds("its memory ends with it", freed >= HELD as i64, freed);

    must("cuCtxSetCurrent", cuda.context_set(0))?;
    session.retain()?;
    let code = cuda.free(address);
    report.equals(
        "an address of before means nothing",
        ResultCode::INVALID_VALUE,
        code,
    );
    must(
        "cuDevicePrimaryCtxRelease",
        cuda.primary_release(session.device),
    )?;
    must("cuCtxSetCurrent", cuda.context_set(0))
}

fn reset(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let cuda = &session.cuda;
    session.retain()?;
    session.alloc(HELD)?;
    let (named, before) = (session.is_visible()?, session.usage()?);
    let code = cuda.primary_reset(session.device);
    report.equals("a reset of a retained context", ResultCode::SUCCESS, code);
    report.observed("it is active after a reset", is_active(session)?);
    let freed = before - session.usage_if(named)?;
    report.holds("a reset frees its memory", freed >= HELD as i64, freed);
    let code = cuda.primary_release(session.device);
    report.equals(
        "a retained context is released after a reset",
        ResultCode::SUCCESS,
        code,
    );
    must("cuCtxSetCurrent", cuda.context_set(0))
}

fn created(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let cuda = &session.cuda;
    // A second context stays, so that the process stays on the card.
    let primary = session.retain()?;
    let mut context = 0;
    let code = cuda.context_create(Some(&mut context), 0, session.device);
    must("cuCtxCreate_v2", code)?;
    let mut current = 0;
    must("cuCtxGetCurrent", cuda.context_current(Some(&mut current)))?;
    report.equals("a created context is current", true, current == context);
    session.alloc(HELD)?;
    let before = session.usage()?;
    must("cuCtxDestroy_v2", cuda.context_destroy(context))?;
    let freed = before - session.usage()?;
    report.holds("its end frees its memory", freed >= HELD as i64, freed);
    must("cuCtxGetCurrent", cuda.context_current(Some(&mut current)))?;
    report.equals("then the one below is current", true, current == primary);
    let code = cuda.context_destroy(context);
    report.observed("a second end", code);
    must(
        "cuDevicePrimaryCtxRelease",
        cuda.primary_release(session.device),
    )
}

pub(super) fn overhead(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::open()?;
    let visible = session.is_visible()?;
    report.observed("NVML names a process without a context", visible);
    let card = session.card_memory()?.0.used as i64;
    let primary = session.retain()?;
    report.observed("NVML names a process with a context", session.is_visible()?);
    let first = session.card_memory()?.0.used as i64 - card;
    report.holds(
        "the first context takes memory of the card",
        first > 0,
        first,
    );
    report.observed("the first context of a process takes", first);
    let own = session.usage()?;
    report.observed("what NVML counts for the process then", own);
    let mut context = 0;
    let code = session
        .cuda
        .context_create(Some(&mut context), 0, session.device);
    must("cuCtxCreate_v2", code)?;
    report.observed("the second context takes", session.usage()? - own);
    must("cuCtxDestroy_v2", session.cuda.context_destroy(context))?;
    report.observed("after the end of the second", session.usage()? - own);
    must("cuCtxSetCurrent", session.cuda.context_set(primary))?;
    must(
        "cuDevicePrimaryCtxRelease",
        session.cuda.primary_release(session.device),
    )?;
    report.observed(
        "NVML names a process whose contexts have ended",
        session.is_visible()?,
    );
    let left = session.card_memory()?.0.used as i64 - card;
    report.observed("still taken from the card then", left);
    Ok(())
}
