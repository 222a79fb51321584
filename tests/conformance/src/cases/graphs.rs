//! Memory of graphs: when it becomes physical, how long it stays, and what makes it go.

use crate::code::Code;
use crate::layout::AllocationNode;
use crate::record::{Report, Stop};
use crate::session::{MIB, Session, must};

/// `CUgraphMem_attribute`.
const USED: i32 = 0;
const RESERVED: i32 = 2;
/// What the graph of these cases allocates.
const BYTES: usize = 64 * MIB;

fn attribute(session: &Session, attribute: i32) -> Result<u64, Stop> {
    let mut value = 0;
    let code = session
        .cuda
        .graph_memory(session.device, attribute, Some(&mut value));
    must("cuDeviceGetGraphMemAttribute", code)?;
    Ok(value)
}

/// A graph with one allocation, which it frees or leaves; executable, with the address.
fn graph(session: &Session, frees: bool) -> Result<(usize, u64), Stop> {
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
    let code = cuda.graph_instantiate(Some(&mut exec), graph, 0);
    must("cuGraphInstantiateWithFlags", code)?;
    Ok((exec, allocation.address))
}

fn launch(session: &Session, exec: usize) -> Result<(), Stop> {
    must("cuGraphLaunch", session.cuda.graph_launch(exec, 0))?;
    must("cuCtxSynchronize", session.cuda.synchronize())
}

pub(super) fn run(report: &Report) -> Result<(), Stop> {
    let session = Session::start()?;
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

fn keeping(report: &Report, session: &Session) -> Result<(), Stop> {
    let (exec, address) = graph(session, false)?;
    launch(session, exec)?;
    let used = attribute(session, USED)?;
    report.holds("what it does not free is used", used >= BYTES as u64, used);
    let code = session.cuda.graph_launch(exec, 0);
    report.equals(
        "it is not launched again meanwhile",
        Code::INVALID_VALUE,
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
