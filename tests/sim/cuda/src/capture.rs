//! Capturing a stream: what is asked of it becomes a graph. Here memory, launches, copies
//! and fills do; copies of arrays are done at once.

use crate::driver::tables;
use crate::error::{Error, Outcome};
use crate::export::exports;
use crate::graphs;
use crate::pointer::Out;
use crate::stream::stream;

/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` and `CUDA_ERROR_ILLEGAL_STATE`.
const UNSUPPORTED: Error = Error(900);
const ILLEGAL_STATE: Error = Error(401);
/// `CU_STREAM_LEGACY`, and the null stream, which is the same.
const LEGACY: u64 = 1;

exports! {
    cuStreamBeginCapture(stream: u64) = begin_v1 => "cuStreamBeginCapture" @ 10000 | cuStreamBeginCapture_ptsz @ 10000;
    cuStreamBeginCapture_v2(stream: u64, mode: u32) = begin => "cuStreamBeginCapture" @ 10010 | cuStreamBeginCapture_v2_ptsz @ 10010;
    cuStreamEndCapture(stream: u64, graph: Out<u64>) = end => "cuStreamEndCapture" @ 10000 | cuStreamEndCapture_ptsz @ 10000;
    cuStreamIsCapturing(stream: u64, status: Out<u32>) = is_capturing => "cuStreamIsCapturing" @ 10000 | cuStreamIsCapturing_ptsz @ 10000;
}

/// The graph that a stream is being captured into.
pub(crate) fn captured(on: u64) -> Option<u64> {
    tables().captures.get(&on).copied()
}

fn begin(on: u64, _mode: u32) -> Outcome {
    stream(on)?;
    if on <= LEGACY {
        return Err(UNSUPPORTED);
    }
    if captured(on).is_some() {
        return Err(ILLEGAL_STATE);
    }
    let graph = graphs::empty();
    tables().captures.insert(on, graph);
    Ok(())
}

fn begin_v1(on: u64) -> Outcome {
    begin(on, 0)
}

fn end(on: u64, graph: Out<u64>) -> Outcome {
    graph.check()?;
    let captured = tables().captures.remove(&on);
    graph.put(captured.ok_or(ILLEGAL_STATE)?)
}

fn is_capturing(on: u64, status: Out<u32>) -> Outcome {
    stream(on)?;
    status.put(u32::from(captured(on).is_some()))
}
