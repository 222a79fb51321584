//! The hooks' queries to the driver. `None` if the driver cannot answer or has no such function.

use apportion_gate::{ConditionalBodies, device_of_graphs};

use super::required_functions::{
    child_graph, ctx_get_current, ctx_get_device, ctx_get_limit, device_count,
    device_get_attribute, device_uuid, device_uuid_v2, event_create, event_destroy, event_query,
    event_record, free_node, func_get_attribute, graph_memory, graph_node_type, graph_trim,
    kernel_get_attribute, kernel_node, kernel_node_v1, library_kernels, module_loading_mode,
    node_parameters, pool_get_attribute, pool_trim_to, primary_release, primary_release_v1,
    primary_retain, primary_state, stream_get_ctx, stream_is_capturing,
};
use crate::foreign::{
    Context, Device, Event, GRAPHS_RESERVED, INVALID_HANDLE, INVALID_VALUE, KernelNode,
    LAZY_LOADING, LOCAL_BYTES, NOT_READY, Opaque, POOL_RESERVED, Pool, SUCCESS, Stream,
    WITHOUT_TIMING, WholeNodeParameters,
};

/// The current context; `None` without one.
pub(crate) fn current_context() -> Option<Context> {
    let mut context: Context = core::ptr::null_mut();
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { ctx_get_current(&raw mut context) }?;
    (status == SUCCESS && !context.is_null()).then_some(context)
}

/// Whether the driver answers queries: it is initialised and not shutting down.
pub(crate) fn is_started() -> bool {
    let mut context: Context = core::ptr::null_mut();
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { ctx_get_current(&raw mut context) };
    status == Some(SUCCESS)
}

/// The device of the current context.
pub(crate) fn current_device() -> Option<Device> {
    let mut device: Device = 0;
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { ctx_get_device(&raw mut device) }?;
    (status == SUCCESS).then_some(device)
}

/// The UUID of a device, or of its MIG instance if it is one.
pub(crate) fn uuid_of(device: Device) -> Option<[u8; 16]> {
    let mut uuid = [0; 16];
    // SAFETY: the pointer is to a local variable of the size that the driver writes.
    let status = match unsafe { device_uuid_v2(&raw mut uuid, device) } {
        Some(status) => status,
        // SAFETY: as above.
        None => unsafe { device_uuid(&raw mut uuid, device) }?,
    };
    (status == SUCCESS).then_some(uuid)
}

/// Whether a device's primary context exists.
pub(crate) fn primary_is_active(device: Device) -> Option<bool> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the pointers are to local variables.
    let status = unsafe { primary_state(device, &raw mut flags, &raw mut active) }?;
    (status == SUCCESS).then_some(active != 0)
}

/// The handle of a device's primary context, which must be active. It is retained and released at once.
pub(crate) fn primary_handle(device: Device) -> Option<Context> {
    let mut context: Context = core::ptr::null_mut();
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { primary_retain(&raw mut context, device) }?;
    if status != SUCCESS {
        return None;
    }
    // SAFETY: this releases what was retained above, and nothing else.
    if unsafe { primary_release(device) }.is_none() {
        // SAFETY: as above; drivers before 11 have only this version.
        let _ = unsafe { primary_release_v1(device) };
    }
    (!context.is_null()).then_some(context)
}

/// A limit of the current context.
pub(crate) fn limit(limit: u32) -> Option<u64> {
    let mut value = 0;
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { ctx_get_limit(&raw mut value, limit) }?;
    (status == SUCCESS).then_some(value as u64)
}

/// An attribute of a device.
pub(crate) fn attribute(attribute: u32, device: Device) -> Option<u64> {
    let mut value = 0;
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { device_get_attribute(&raw mut value, attribute, device) }?;
    u64::try_from(value).ok().filter(|_| status == SUCCESS)
}

/// The number of devices.
pub(crate) fn devices() -> Option<u32> {
    let mut count = 0;
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { device_count(&raw mut count) }?;
    u32::try_from(count).ok().filter(|_| status == SUCCESS)
}

/// Whether code is loaded at its first use. Drivers that cannot answer load everything at once.
pub(crate) fn loads_lazily() -> bool {
    let mut mode = 0;
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { module_loading_mode(&raw mut mode) };
    status == Some(SUCCESS) && mode == LAZY_LOADING
}

/// An event that completes when a stream has done all its work so far.
pub(crate) fn event_behind(stream: Stream) -> Option<Event> {
    let mut event: Event = core::ptr::null_mut();
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { event_create(&raw mut event, WITHOUT_TIMING) }?;
    if status != SUCCESS {
        return None;
    }
    // SAFETY: the event is our own, the stream the caller's.
    let recorded = unsafe { event_record(event, stream) } == Some(SUCCESS);
    if !recorded {
        forget_event(event as u64);
    }
    recorded.then_some(event)
}

/// Whether an event of ours is still pending. An event that can no longer be queried counts as done.
pub(crate) fn is_pending(event: u64) -> bool {
    // SAFETY: the event is our own, and no other thread queries it meanwhile.
    let status = unsafe { event_query(event as Event) };
    status == Some(NOT_READY)
}

/// Destroys an event of ours.
pub(crate) fn forget_event(event: u64) {
    // SAFETY: the event is our own, and no other thread knows it any more.
    let _ = unsafe { event_destroy(event as Event) };
}

/// The type of a graph node.
pub(crate) fn node_type(node: Opaque) -> Option<u32> {
    let mut kind = 0;
    // SAFETY: the node is one that the driver gave out, the pointer is to a local variable.
    let status = unsafe { graph_node_type(node, &raw mut kind) }?;
    (status == SUCCESS).then_some(kind)
}

/// The address that a graph node frees.
pub(crate) fn freed_by(node: Opaque) -> Option<u64> {
    let mut address = 0;
    // SAFETY: as for `node_type`.
    let status = unsafe { free_node(node, &raw mut address) }?;
    (status == SUCCESS).then_some(address)
}

/// The bodies of a conditional node.
pub(crate) fn conditional_of(node: Opaque) -> Option<ConditionalBodies> {
    let mut parameters = WholeNodeParameters::empty();
    // SAFETY: as for `node_type`.
    let status = unsafe { node_parameters(node, &raw mut parameters) }?;
    (status == SUCCESS).then(|| parameters.start.bodies())
}

/// The graph of a child graph node.
pub(crate) fn child_of(node: Opaque) -> Option<Opaque> {
    let mut graph: Opaque = core::ptr::null_mut();
    // SAFETY: as for `node_type`.
    let status = unsafe { child_graph(node, &raw mut graph) }?;
    (status == SUCCESS).then_some(graph)
}

/// The local memory of each thread of a function. With a device, the function is a kernel without a context.
pub(crate) fn local_bytes(function: Opaque, device: Option<Device>) -> Option<u64> {
    let mut value = 0;
    let place = &raw mut value;
    let status = match device {
        // SAFETY: the kernel is the caller's, the pointer is to a local variable.
        Some(device) => unsafe { kernel_get_attribute(place, LOCAL_BYTES, function, device) },
        // SAFETY: as above, of a function.
        None => unsafe { func_get_attribute(place, LOCAL_BYTES, function) },
    }?;
    u64::try_from(value).ok().filter(|_| status == SUCCESS)
}

/// The number of kernels in a library.
pub(crate) fn kernels_in(library: Opaque) -> Option<u32> {
    let mut count = 0;
    // SAFETY: the library is the caller's, the pointer is to a local variable.
    let status = unsafe { library_kernels(&raw mut count, library) }?;
    (status == SUCCESS).then_some(count)
}

/// The context of a stream that is not a default stream.
pub(crate) fn context_of(stream: Stream) -> Option<Context> {
    const LAST_SPECIAL: usize = 2;
    if stream as usize <= LAST_SPECIAL {
        return None;
    }
    let mut context: Context = core::ptr::null_mut();
    // SAFETY: the stream is the caller's, the pointer to a local variable.
    let status = unsafe { stream_get_ctx(stream, &raw mut context) }?;
    (status == SUCCESS).then_some(context)
}

/// The kernel that a kernel node launches.
pub(crate) fn kernel_of(node: Opaque) -> Option<KernelNode> {
    // SAFETY: the structure holds numbers and pointers, for which zeroes are valid values.
    let mut kernel: KernelNode = unsafe { core::mem::zeroed() };
    let place = &raw mut kernel;
    // SAFETY: the node is one that the driver gave out. The structure has the newer version's size, and that version
    // begins like the older one.
    let status = unsafe { kernel_node(node, place) };
    // SAFETY: as above.
    let status = status.or_else(|| unsafe { kernel_node_v1(node, place) });
    (status == Some(SUCCESS)).then_some(kernel)
}

/// Whether a stream is being captured.
pub(crate) fn is_capturing(stream: Stream) -> bool {
    let mut capturing = 0;
    // SAFETY: the stream is the caller's, the pointer is to a local variable.
    let status = unsafe { stream_is_capturing(stream, &raw mut capturing) };
    status == Some(SUCCESS) && capturing != 0
}

/// The driver's answer to how much a pool reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolReading {
    /// The pool reserves this many bytes.
    Reserves(u64),
    /// The driver cannot answer now.
    Unknown,
    /// There is no such pool.
    NoPool,
}

/// How much a pool reserves now. The pool may be that of a device's graphs.
pub(crate) fn pool_reserved(pool: u64) -> PoolReading {
    let mut reserved = 0;
    let place = &raw mut reserved;
    let status = match device_of_graphs(pool) {
        // SAFETY: the value of this attribute is 64 bits.
        Some(device) => unsafe { graph_memory(device, GRAPHS_RESERVED, place) },
        // SAFETY: the pool is one that the driver gave out, and the value of this attribute is 64 bits.
        None => unsafe { pool_get_attribute(pool as Pool, POOL_RESERVED, place) },
    };
    match status {
        Some(SUCCESS) => PoolReading::Reserves(reserved),
        Some(INVALID_VALUE | INVALID_HANDLE) => PoolReading::NoPool,
        Some(_) | None => PoolReading::Unknown,
    }
}

/// Trims a pool completely. The pool may be that of a device's graphs.
pub(crate) fn trim(pool: u64) {
    let _ = match device_of_graphs(pool) {
        // SAFETY: the argument is only a number.
        Some(device) => unsafe { graph_trim(device) },
        // SAFETY: the pool is one that the driver gave out, and a thread that destroys it waits for us.
        None => unsafe { pool_trim_to(pool as Pool, 0) },
    };
}
