//! Streams. Every call does its work before it returns, so a stream is only a handle with properties and is always
//! empty. A synchronization is still a point at which pools shrink.

use std::collections::HashMap;

use crate::capture::{self, rules};
use crate::captured_work::{StreamWork, on_stream};
use crate::context::current;
use crate::driver::{self, tables};
use crate::edges::LOSSY_QUERY;
use crate::error::{CudaError, INVALID_HANDLE, INVALID_VALUE, Outcome};
use crate::event;
use crate::export::exports;
use crate::green_contexts::green_of;
use crate::pointer::{In, Out};

/// The streams of a process by handle.
pub(crate) type Streams = HashMap<u64, Stream>;

/// A stream that the program has created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    context: u64,
    flags: u32,
    priority: i32,
    id: u64,
}

/// `CUstreamCallback`.
type StreamCallback = Option<unsafe extern "C" fn(stream: u64, status: i32, data: u64)>;
/// `CUhostFn`.
pub(crate) type HostFunction = Option<unsafe extern "C" fn(data: u64)>;

/// `CUDA_HOST_NODE_PARAMS`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct HostNodeParams {
    function: HostFunction,
    data: u64,
}

/// `CU_STREAM_LEGACY`: what the null stream means unless a thread has its own default stream.
const LEGACY: u64 = 1;
/// `CU_STREAM_PER_THREAD`.
const LAST_SPECIAL: u64 = 2;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// The highest priority, as `cuCtxGetStreamPriorityRange` says.
const GREATEST_PRIORITY: i32 = -5;

exports! {
    cuStreamCreate(out: Out<u64>, flags: u32) = create => "cuStreamCreate" @ 2000;
    cuStreamCreateWithPriority(out: Out<u64>, flags: u32, priority: i32) = create_with_priority => "cuStreamCreateWithPriority" @ 5050;
    cuStreamDestroy(stream: u64) = destroy => "cuStreamDestroy" @ 2000;
    cuStreamDestroy_v2(stream: u64) = destroy => "cuStreamDestroy" @ 4000;
    cuStreamQuery(stream: u64) = query => "cuStreamQuery" @ 2000 | cuStreamQuery_ptsz @ 7000;
    cuStreamSynchronize(stream: u64) = synchronize => "cuStreamSynchronize" @ 2000 | cuStreamSynchronize_ptsz @ 7000;
    cuStreamWaitEvent(stream: u64, event: u64, flags: u32) = wait_event => "cuStreamWaitEvent" @ 3020 | cuStreamWaitEvent_ptsz @ 7000;
    cuStreamGetFlags(stream: u64, flags: Out<u32>) = get_flags => "cuStreamGetFlags" @ 5050 | cuStreamGetFlags_ptsz @ 7000;
    cuStreamGetPriority(stream: u64, priority: Out<i32>) = get_priority => "cuStreamGetPriority" @ 5050 | cuStreamGetPriority_ptsz @ 7000;
    cuStreamGetId(stream: u64, id: Out<u64>) = get_id => "cuStreamGetId" @ 12000 | cuStreamGetId_ptsz @ 12000;
    cuStreamGetCtx(stream: u64, context: Out<u64>) = get_context_v1 => "cuStreamGetCtx" @ 9020 | cuStreamGetCtx_ptsz @ 9020;
    cuStreamGetCtx_v2(stream: u64, context: Out<u64>, green: Out<u64>) = get_context => "cuStreamGetCtx" @ 12050 | cuStreamGetCtx_v2_ptsz @ 12050;
    cuStreamGetDevice(stream: u64, device: Out<i32>) = get_device => "cuStreamGetDevice" @ 12080 | cuStreamGetDevice_ptsz @ 12080;
    cuStreamGetCaptureInfo(stream: u64, status: Out<u32>, id: Out<u64>) = get_capture_v1 => "cuStreamGetCaptureInfo" @ 10010 | cuStreamGetCaptureInfo_ptsz @ 10010;
    cuStreamGetCaptureInfo_v2(stream: u64, status: Out<u32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>, count: Out<usize>) = get_capture_v2 => "cuStreamGetCaptureInfo" @ 11030 | cuStreamGetCaptureInfo_v2_ptsz @ 11030;
    cuStreamGetCaptureInfo_v3(stream: u64, status: Out<u32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>, edges: Out<u64>, count: Out<usize>) = get_capture => "cuStreamGetCaptureInfo" @ 12030 | cuStreamGetCaptureInfo_v3_ptsz @ 12030;
    cuStreamAddCallback(stream: u64, callback: StreamCallback, data: u64, flags: u32) = add_callback => "cuStreamAddCallback" @ 5000 | cuStreamAddCallback_ptsz @ 7000;
    cuLaunchHostFunc(stream: u64, function: HostFunction, data: u64) = launch_host_v1 => "cuLaunchHostFunc" @ 10000 | cuLaunchHostFunc_ptsz @ 10000;
    cuLaunchHostFunc_v2(stream: u64, function: HostFunction, data: u64, mode: u32) = launch_host => "cuLaunchHostFunc" @ 13010 | cuLaunchHostFunc_v2_ptsz @ 13010;
    cuStreamAttachMemAsync(stream: u64, address: u64, bytes: usize, flags: u32) = attach_memory => "cuStreamAttachMemAsync" @ 6000 | cuStreamAttachMemAsync_ptsz @ 7000;
    cuStreamCopyAttributes(to: u64, from: u64) = copy_attributes => "cuStreamCopyAttributes" @ 11000 | cuStreamCopyAttributes_ptsz @ 11000;
    cuStreamGetAttribute(stream: u64, attribute: u32, value: Out<u32>) = get_attribute => "cuStreamGetAttribute" @ 11000 | cuStreamGetAttribute_ptsz @ 11000;
    cuStreamSetAttribute(stream: u64, attribute: u32, value: In<u32>) = set_attribute => "cuStreamSetAttribute" @ 11000 | cuStreamSetAttribute_ptsz @ 11000;
}

impl Stream {
    /// The context of the stream.
    pub(crate) fn context(self) -> u64 {
        self.context
    }

    /// Whether it belongs to a context.
    pub(crate) fn is_in(self, context: u64) -> bool {
        self.context == context
    }

    /// Whether the stream and the null stream wait for each other.
    pub(crate) fn is_blocking(self) -> bool {
        self.flags & NON_BLOCKING == 0
    }
}

impl HostNodeParams {
    /// Fails if there is no function to call.
    pub(crate) fn checked(self) -> Result<Self, CudaError> {
        self.function.ok_or(INVALID_VALUE)?;
        Ok(self)
    }

    pub(crate) fn perform(&self) -> Outcome {
        let function = self.function.ok_or(INVALID_VALUE)?;
        // SAFETY: the program gives a function that may be called with this data whenever the stream, or the graph
        // that it is in, reaches this point.
        unsafe { function(self.data) };
        Ok(())
    }
}

/// Whether a handle means the null stream that all threads share.
pub(crate) fn is_legacy(handle: u64) -> bool {
    handle == LEGACY || (handle == 0 && !rules::is_per_thread())
}

/// A stream that accepts work.
pub(crate) fn stream(handle: u64) -> Result<Stream, CudaError> {
    let stream = known(handle)?;
    rules::check_stream(handle)?;
    Ok(stream)
}

/// The properties of a stream. Default streams take the current context.
pub(crate) fn known(handle: u64) -> Result<Stream, CudaError> {
    if handle <= LAST_SPECIAL {
        let (context, _) = current()?;
        return Ok(Stream {
            context,
            flags: 0,
            priority: 0,
            id: handle.max(1),
        });
    }
    tables().streams.get(&handle).copied().ok_or(INVALID_HANDLE)
}

/// The device that a stream's work is done on.
pub(crate) fn device_of(handle: u64) -> Result<i32, CudaError> {
    let context = known(handle)?.context;
    Ok(tables().context(context)?.device)
}

fn create(out: Out<u64>, flags: u32) -> Outcome {
    create_with_priority(out, flags, 0)
}

/// Creates a stream. A priority outside the range is clamped.
fn create_with_priority(out: Out<u64>, flags: u32, priority: i32) -> Outcome {
    out.check()?;
    let (context, _) = current()?;
    if flags > NON_BLOCKING {
        return Err(INVALID_VALUE);
    }
    out.put(enter(context, flags, priority))
}

/// A new stream of a context.
pub(crate) fn enter(context: u64, flags: u32, priority: i32) -> u64 {
    let priority = priority.clamp(GREATEST_PRIORITY, 0);
    let mut tables = tables();
    let (handle, id) = (
        tables.fresh(),
        tables.streams.len() as u64 + LAST_SPECIAL + 1,
    );
    tables.streams.insert(
        handle,
        Stream {
            context,
            flags,
            priority,
            id,
        },
    );
    handle
}

fn destroy(handle: u64) -> Outcome {
    tables()
        .streams
        .remove(&handle)
        .map(drop)
        .ok_or(INVALID_HANDLE)
}

fn query(handle: u64) -> Outcome {
    known(handle)?;
    rules::check_wait(handle)
}

fn synchronize(handle: u64) -> Outcome {
    query(handle)?;
    driver::synchronize()
}

fn wait_event(handle: u64, event: u64, flags: u32) -> Outcome {
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    stream(handle)?;
    match event::captured_in(event)? {
        Some(recorded) => capture::join(handle, &recorded),
        None => Ok(()),
    }
}

fn get_flags(handle: u64, flags: Out<u32>) -> Outcome {
    flags.put(known(handle)?.flags)
}

fn get_priority(handle: u64, priority: Out<i32>) -> Outcome {
    priority.put(known(handle)?.priority)
}

fn get_id(handle: u64, id: Out<u64>) -> Outcome {
    id.put(known(handle)?.id)
}

fn get_context_v1(handle: u64, context: Out<u64>) -> Outcome {
    context.put(known(handle)?.context)
}

/// The context and the green context of a stream. A stream of a green context reports the primary context of its
/// device.
fn get_context(handle: u64, context: Out<u64>, green: Out<u64>) -> Outcome {
    let own = known(handle)?.context;
    let (of_green, device) = (green_of(own), device_of(handle)?);
    let primary = tables()
        .primaries
        .get(&device)
        .map(|primary| primary.handle);
    context.offer(match of_green {
        0 => own,
        _ => primary.unwrap_or_default(),
    });
    green.offer(of_green);
    Ok(())
}

fn get_device(handle: u64, device: Out<i32>) -> Outcome {
    device.put(device_of(handle)?)
}

fn get_capture_v1(handle: u64, status: Out<u32>, id: Out<u64>) -> Outcome {
    let found = capture::description(handle)?;
    id.offer(found.id);
    status.put(found.status as u32)
}

fn get_capture_v2(
    handle: u64,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<u64>,
    dependencies: Out<u64>,
    count: Out<usize>,
) -> Outcome {
    let edges = Out::null();
    get_capture(handle, status, id, graph, dependencies, edges, count)
}

/// Fails if edge data would be lost because the caller has no room for it.
fn get_capture(
    handle: u64,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<u64>,
    dependencies: Out<u64>,
    edges: Out<u64>,
    count: Out<usize>,
) -> Outcome {
    let found = capture::description(handle)?;
    if found.is_annotated && dependencies.check().is_ok() && edges.check().is_err() {
        return Err(LOSSY_QUERY);
    }
    graph.offer(found.graph);
    dependencies.offer(found.nodes);
    edges.offer(found.data);
    count.offer(found.count);
    get_capture_v1(handle, status, id)
}

fn add_callback(handle: u64, callback: StreamCallback, data: u64, flags: u32) -> Outcome {
    let callback = callback.filter(|_| flags == 0).ok_or(INVALID_VALUE)?;
    stream(handle)?;
    // SAFETY: the program gives a function that is called once, with this data, when the stream reaches this point,
    // which is now.
    unsafe { callback(handle, 0, data) };
    Ok(())
}

fn launch_host_v1(handle: u64, function: HostFunction, data: u64) -> Outcome {
    let call = HostNodeParams { function, data };
    on_stream(handle, StreamWork::Host(call.checked()?))
}

fn launch_host(handle: u64, function: HostFunction, data: u64, _mode: u32) -> Outcome {
    launch_host_v1(handle, function, data)
}

fn attach_memory(handle: u64, address: u64, _bytes: usize, _flags: u32) -> Outcome {
    stream(handle)?;
    tables().range_of(address).map(drop)
}

fn copy_attributes(to: u64, from: u64) -> Outcome {
    stream(to)?;
    stream(from).map(drop)
}

/// `CUstreamAttrID`: only the priority has a value.
fn get_attribute(handle: u64, attribute: u32, value: Out<u32>) -> Outcome {
    let stream = stream(handle)?;
    match attribute {
        3 => value.put(1),
        8 => value.put(stream.priority.cast_unsigned()),
        1 | 9 | 10 => value.put(0),
        _ => Err(INVALID_VALUE),
    }
}

fn set_attribute(handle: u64, attribute: u32, value: In<u32>) -> Outcome {
    stream(handle)?;
    value.get()?;
    if [1, 3, 8, 9, 10].contains(&attribute) {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}
