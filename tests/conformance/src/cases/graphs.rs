//! Graph memory: when it becomes physical, how long it stays, and what frees it.

use crate::code::ResultCode;
use crate::layout::AllocationNode;
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB, must};

/// `CUgraphMem_attribute`.
const USED: i32 = 0;
const RESERVED: i32 = 2;
/// The allocation of these cases' graphs.
const BYTES: usize = 64 * MIB;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE: u64 = 1;
/// `CU_STREAM_NON_BLOCKING` and `CU_STREAM_CAPTURE_MODE_GLOBAL`.
const NON_BLOCKING: u32 = 1;
const GLOBAL: i32 = 0;

fn attribute(session: &DriverSession, attribute: i32) -> Result<u64, CaseError> {
    let mut value = 0;
    let code = session
        .cuda
        .graph_memory(session.device, attribute, Some(&mut value));
    must("cuDeviceGetGraphMemAttribute", code)?;
    Ok(value)
}

/// An executable graph with one allocation, which it frees or keeps, and the address.
fn graph(session: &DriverSession, frees: bool) -> Result<(usize, u64), CaseError> {
    graph_with(session, frees, 0)
}

/// The same, instantiated with flags.
fn graph_with(session: &DriverSession, frees: bool, flags: u64) -> Result<(usize, u64), CaseError> {
    let cuda = &session.cuda;
    let (mut graph, mut first, mut second, mut exec) = (0, 0, 0, 0);
    must("cuGraphCreate", cuda.graph_create(Some(&mut graph), 0))?;
    let mut allocation = AllocationNode::new(session.location(), BYTES);
    let code = cuda.graph_alloc(Some(&mut first), graph, None, 0, Some(&mut allocation));
    must("cuGraphAddMemAllocNode", code)?;
    if frees {
        let code = cuda.graph_free(
            Some(&mut second),
            graph,
            Some(&first),
            1,
            allocation.address,
        );
        must("cuGraphAddMemFreeNode", code)?;
    }
    let code = cuda.graph_instantiate(Some(&mut exec), graph, flags);
    must("cuGraphInstantiateWithFlags", code)?;
    Ok((exec, allocation.address))
}

fn launch(session: &DriverSession, exec: usize) -> Result<(), CaseError> {
    must("cuGraphLaunch", session.cuda.graph_launch(exec, 0))?;
    must("cuCtxSynchronize", session.cuda.synchronize())
}

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let enough = BYTES as u64;
    let before = session.usage()?;
    let (freeing, _) = graph(&session, true)?;
    report.equals(
        "no graph has memory before a launch",
        0,
        attribute(&session, RESERVED)?,
    );

    must("cuGraphUpload", session.cuda.graph_upload(freeing, 0))?;
    must("cuCtxSynchronize", session.cuda.synchronize())?;
    report.observed("uploaded, it reserves", attribute(&session, RESERVED)?);
    launch(&session, freeing)?;
    let reserved = attribute(&session, RESERVED)?;
    report.holds("launched, it has its memory", reserved >= enough, reserved);
    report.equals("what it freed is not used", 0, attribute(&session, USED)?);
    report.observed("NVML counts for it", session.usage()? - before);
    launch(&session, freeing)?;
    let again = attribute(&session, RESERVED)?;
    report.equals("a second launch takes nothing more", reserved, again);

    must(
        "cuDeviceGraphMemTrim",
        session.cuda.graph_trim(session.device),
    )?;
    report.equals("trimmed, it has none", 0, attribute(&session, RESERVED)?);
    report.observed("NVML counts after trimming", session.usage()? - before);
    keeping(report, &session)
}

fn keeping(report: &CaseReport, session: &DriverSession) -> Result<(), CaseError> {
    let (exec, address) = graph(session, false)?;
    launch(session, exec)?;
    let used = attribute(session, USED)?;
    report.holds("what it does not free is used", used >= BYTES as u64, used);
    let code = session.cuda.graph_launch(exec, 0);
    report.equals(
        "it is not launched again meanwhile",
        ResultCode::INVALID_VALUE,
        code,
    );
    must(
        "cuDeviceGraphMemTrim",
        session.cuda.graph_trim(session.device),
    )?;
    let reserved = attribute(session, RESERVED)?;
    report.holds(
        "memory in use is not trimmed",
        reserved >= BYTES as u64,
        reserved,
    );
    must("cuMemFree_v2", session.cuda.free(address))?;
    must("cuCtxSynchronize", session.cuda.synchronize())?;
    report.equals(
        "freed outside, it is not used",
        0,
        attribute(session, USED)?,
    );
    launch(session, exec)?;
    must("cuMemFree_v2", session.cuda.free(address))
}

pub(super) fn freed_at_launch(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let cuda = &session.cuda;
    let (exec, address) = graph_with(&session, false, AUTO_FREE)?;
    let mut flags = 0;
    must(
        "cuGraphExecGetFlags",
        cuda.exec_flags(exec, Some(&mut flags)),
    )?;
    let fact = "an executable graph says how it was made";
    report.equals(fact, AUTO_FREE, flags);
    launch(&session, exec)?;
    let reserved = attribute(&session, RESERVED)?;
    for _ in 0..3 {
        let code = cuda.graph_launch(exec, 0);
        report.equals("it is launched again", ResultCode::SUCCESS, code);
        must("cuCtxSynchronize", cuda.synchronize())?;
    }
    let used = attribute(&session, USED)?;
    let is_once = used >= BYTES as u64 && used < 2 * BYTES as u64;
    report.holds("what it allocates is used once", is_once, used);
    let again = attribute(&session, RESERVED)?;
    report.equals("and reserved once", reserved, again);
    // A trim keeps the memory in use and leaves it for the next launch.
    must("cuDeviceGraphMemTrim", cuda.graph_trim(session.device))?;
    launch(&session, exec)?;
    let after = attribute(&session, RESERVED)?;
    report.equals("also after trimming", reserved, after);
    must("cuMemFree_v2", cuda.free(address))?;
    must("cuCtxSynchronize", cuda.synchronize())?;
    report.equals("freed, it is not used", 0, attribute(&session, USED)?);
    must("cuGraphExecDestroy", cuda.exec_destroy(exec))
}

pub(super) fn captured(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let cuda = &session.cuda;
    let (mut stream, mut address, mut captured, mut exec) = (0, 0, 0, 0);
    let code = cuda.stream_create(Some(&mut stream), NON_BLOCKING);
    must("cuStreamCreate", code)?;
    let code = cuda.begin_capture(stream, GLOBAL);
    must("cuStreamBeginCapture", code)?;
    let code = cuda.alloc_async(Some(&mut address), BYTES, stream);
    let fact = "a stream that is captured allocates";
    report.equals(fact, (ResultCode::SUCCESS, true), (code, address != 0));
    let code = cuda.set_bytes_async(address, 7, BYTES, stream);
    report.equals("its memory is filled", ResultCode::SUCCESS, code);
    let mut passing = 0;
    let code = cuda.alloc_async(Some(&mut passing), BYTES, stream);
    must("cuMemAllocAsync", code)?;
    let code = cuda.free_async(passing, stream);
    report.equals("other memory is freed", ResultCode::SUCCESS, code);
    let code = cuda.end_capture(stream, Some(&mut captured));
    must("cuStreamEndCapture", code)?;
    let fact = "nothing was taken by the capture";
    report.equals(fact, 0, attribute(&session, RESERVED)?);
    let code = cuda.graph_instantiate(Some(&mut exec), captured, AUTO_FREE);
    must("cuGraphInstantiateWithFlags", code)?;
    must("cuGraphDestroy", cuda.graph_destroy(captured))?;
    for _ in 0..3 {
        let code = cuda.graph_launch(exec, stream);
        report.equals("it is launched", ResultCode::SUCCESS, code);
    }
    must("cuCtxSynchronize", cuda.synchronize())?;
    let mut seen = [0_u8; 1];
    let code = cuda.copy_out(seen.as_mut_ptr().cast(), address, 1);
    report.equals(
        "its memory can be read",
        (ResultCode::SUCCESS, 7),
        (code, seen[0]),
    );
    let used = attribute(&session, USED)?;
    let is_once = used >= BYTES as u64 && used < 2 * BYTES as u64;
    report.holds("what it did not free is used", is_once, used);
    let code = cuda.free_async(address, stream);
    report.equals("it is freed in a stream", ResultCode::SUCCESS, code);
    must("cuCtxSynchronize", cuda.synchronize())?;
    report.equals("and not used then", 0, attribute(&session, USED)?);
    must("cuGraphExecDestroy", cuda.exec_destroy(exec))?;
    must("cuDeviceGraphMemTrim", cuda.graph_trim(session.device))?;
    report.equals("nor kept, if trimmed", 0, attribute(&session, RESERVED)?);
    must("cuStreamDestroy", cuda.stream_destroy(stream))
}
