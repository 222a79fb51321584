//! Green contexts: parts of a card's multiprocessors.

use std::ptr::null_mut;

use crate::code::ResultCode;
use crate::layout::{SmGroupParams, SmResource};
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, must};

/// `CU_DEV_RESOURCE_TYPE_SM`.
const MULTIPROCESSORS: u32 = 1;
/// `CU_GREEN_CTX_DEFAULT_STREAM`.
const DEFAULT_STREAM: u32 = 1;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// The driver version with all functions used here.
const GREEN: i32 = 12050;
/// The driver versions with ids, and with splits by a list of wishes.
const IDENTITIES: i32 = 12090;
const WISHES: i32 = 13010;
/// More parts than any split of these cases makes.
const ROOM: usize = 4;

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::open()?;
    let primary = session.retain()?;
    let cuda = &session.cuda;
    let mut version = 0;
    let code = cuda.driver_version(Some(&mut version));
    must("cuDriverGetVersion", code)?;
    if version < GREEN {
        return Ok(());
    }

    let mut all = SmResource::EMPTY;
    let code = cuda.device_resource(session.device, Some(&mut all), 77);
    let fact = "a type that there is not";
    report.equals(fact, ResultCode::INVALID_RESOURCE_TYPE, code);
    let code = cuda.device_resource(session.device, Some(&mut all), MULTIPROCESSORS);
    must("cuDeviceGetDevResource", code)?;
    let mut of_context = SmResource::EMPTY;
    let code = cuda.context_resource(primary, Some(&mut of_context), MULTIPROCESSORS);
    must("cuCtxGetDevResource", code)?;
    let fact = "a plain context has all multiprocessors";
    let (wanted, seen) = (all.multiprocessors, of_context.multiprocessors);
    report.equals(fact, wanted, seen);

    let least = all.multiprocessors / 4;
    let mut possible = 0;
    let code = cuda.split_resource(null_mut(), Some(&mut possible), Some(&all), None, 0, least);
    report.equals("a split is tried out", ResultCode::SUCCESS, code);
    report.holds("there are parts", possible > 0, possible);
    let too_many = all.multiprocessors + 1;
    let mut none = 0;
    let code = cuda.split_resource(null_mut(), Some(&mut none), Some(&all), None, 0, too_many);
    let fact = "no part is larger than the whole";
    report.holds(fact, !code.succeeded(), code);

    if version >= WISHES {
        wishes(report, &session, &all)?;
    }
    let (mut groups, mut count, mut left) = ([SmResource::EMPTY; ROOM], 2, SmResource::EMPTY);
    let parts = groups.as_mut_ptr();
    let code = cuda.split_resource(
        parts,
        Some(&mut count),
        Some(&all),
        Some(&mut left),
        0,
        least,
    );
    must("cuDevSmResourceSplitByCount", code)?;
    let made = &groups[..count as usize];
    let is_enough = made.iter().all(|one| one.multiprocessors >= least);
    report.holds("each part has as many as were asked for", is_enough, count);
    let mut sum: u32 = made.iter().map(|one| one.multiprocessors).sum();
    if left.kind == MULTIPROCESSORS {
        sum += left.multiprocessors;
    }
    let wanted = all.multiprocessors;
    report.equals("the parts and what is left are all", wanted, sum);

    let mut description = 0;
    let mut mixed = [groups[0], all];
    let code = cuda.describe_resources(Some(&mut description), mixed.as_mut_ptr(), 2);
    let fact = "what is not of one split is not described together";
    report.holds(fact, !code.succeeded(), code);
    let code = cuda.describe_resources(Some(&mut description), groups.as_mut_ptr(), 1);
    must("cuDevResourceGenerateDesc", code)?;
    contexts(report, &session, primary, description, &groups[0])
}

/// Two parts: one of eight multiprocessors, and one with all that are left.
fn wishes(report: &CaseReport, session: &DriverSession, all: &SmResource) -> Result<(), CaseError> {
    let (mut groups, mut left) = ([SmResource::EMPTY; 2], SmResource::EMPTY);
    let mut wanted = [SmGroupParams::of(8), SmGroupParams::of(0)];
    let code = session.cuda.split_by_wishes(
        groups.as_mut_ptr(),
        2,
        Some(all),
        Some(&mut left),
        0,
        wanted.as_mut_ptr(),
    );
    report.observed("a split by wishes", code);
    if !code.succeeded() {
        return Ok(()); // This card is too small.
    }
    let [first, second] = groups.map(|group| group.multiprocessors);
    report.equals("a part is as large as was wished", 8, first);
    let told = wanted[1].multiprocessors;
    let fact = "what was found is told";
    report.equals(fact, second, told);
    let mut sum = first + second;
    if left.kind == MULTIPROCESSORS {
        sum += left.multiprocessors;
    }
    let fact = "these parts and what is left are all";
    report.equals(fact, all.multiprocessors, sum);
    let odd = &mut [SmGroupParams::of(7)];
    let groups = groups.as_mut_ptr();
    let code = (session.cuda).split_by_wishes(groups, 1, Some(all), None, 0, odd.as_mut_ptr());
    report.holds("no part of an odd number", !code.succeeded(), code);
    Ok(())
}

fn contexts(
    report: &CaseReport,
    session: &DriverSession,
    primary: usize,
    description: usize,
    part: &SmResource,
) -> Result<(), CaseError> {
    let cuda = &session.cuda;
    let (mut green, mut own) = (0, SmResource::EMPTY);
    let code = cuda.green_create(
        Some(&mut green),
        description,
        session.device,
        DEFAULT_STREAM,
    );
    report.observed("a green context of a part", code);
    if !code.succeeded() {
        return Ok(()); // This card does not support that.
    }
    let code = cuda.green_resource(green, Some(&mut own), MULTIPROCESSORS);
    must("cuGreenCtxGetDevResource", code)?;
    let fact = "a green context has the multiprocessors of its description";
    let (wanted, seen) = (part.multiprocessors, own.multiprocessors);
    report.equals(fact, wanted, seen);

    let mut stream = 0;
    let code = cuda.green_stream(Some(&mut stream), green, 0, 0);
    let fact = "a stream that waits for the null stream";
    report.equals(fact, ResultCode::INVALID_VALUE, code);
    let code = cuda.green_stream(Some(&mut stream), green, NON_BLOCKING, 0);
    must("cuGreenCtxStreamCreate", code)?;
    let (mut context, mut of_stream) = (0, 0);
    let code = cuda.stream_context(stream, Some(&mut context), Some(&mut of_stream));
    must("cuStreamGetCtx_v2", code)?;
    let is_same = (context, of_stream) == (primary, green);
    let fact = "its stream names it and the primary context";
    report.equals(fact, true, is_same);
    must("cuStreamDestroy", cuda.stream_destroy(stream))?;
    events(report, session, green)?;
    must("cuGreenCtxDestroy", cuda.green_destroy(green))
}

/// Waiting for all work of a green context, and its id.
fn events(report: &CaseReport, session: &DriverSession, green: usize) -> Result<(), CaseError> {
    let (cuda, mut event, mut version) = (&session.cuda, 0, 0);
    must("cuEventCreate", cuda.event_create(Some(&mut event), 0))?;
    let code = cuda.green_record(green, event);
    report.equals(
        "a green context records an event",
        ResultCode::SUCCESS,
        code,
    );
    must("cuCtxSynchronize", cuda.synchronize())?;
    let fact = "which happens";
    report.equals(fact, ResultCode::SUCCESS, cuda.event_query(event));
    let code = cuda.green_wait(green, event);
    report.equals("and waits for one", ResultCode::SUCCESS, code);
    let code = cuda.green_record(green, 0);
    report.holds("not for none", !code.succeeded(), code);
    let code = cuda.driver_version(Some(&mut version));
    must("cuDriverGetVersion", code)?;
    if version >= IDENTITIES {
        let (mut first, mut second) = (0, 1);
        let codes = [&mut first, &mut second].map(|id| cuda.green_id(green, Some(id)));
        must("cuGreenCtxGetId", codes[0])?;
        report.equals("its number stays", first, second);
    }
    Ok(())
}
