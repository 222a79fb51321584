//! The driver's own functions: where they are, once the program has loaded it.
//!
//! The libraries are recognised by the name that they give themselves, not by their path, so a driver
//! in a wheel, a compatibility folder or under WSL is the driver too. This library never loads one: a
//! program that has no driver gets what it would get without us. When one is found it is pinned, so that
//! the addresses stay good.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::ControlFlow;
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use apportion_gate::device_of_graphs;

use crate::elf::{self, Object};
use crate::errno;
use crate::foreign::{
    AllocationNode, ArrayRequirements, Context, Device, Event, KernelNode, NvmlDevice, Opaque,
};
use crate::foreign::{
    GRAPHS_RESERVED, INVALID_HANDLE, INVALID_VALUE, LAZY_LOADING, LOCAL_BYTES, NOT_READY,
    POOL_RESERVED, Pool, SUCCESS, Status, Stream, WITHOUT_TIMING,
};
use crate::table::{COUNT, Library, ROWS};

/// The real function of each row; 0 where there is none or it is not known yet.
/// Written by: [`load`], always with the same values. Read by: every hook. Release/Acquire.
static REAL: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

/// Whether a library was found and its rows are filled in.
/// Written by: [`load`], after `REAL`. Read by: every look-up. Release/Acquire.
static FOUND: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// The real function of a row, if the library is in the process and has it.
#[inline]
pub(crate) fn real(place: usize, library: Library) -> Option<usize> {
    let known = REAL.get(place)?.load(Acquire);
    if known != 0 {
        return Some(known);
    }
    load(library);
    let known = REAL.get(place)?.load(Acquire);
    (known != 0).then_some(known)
}

/// The row whose real function is at this address.
pub(crate) fn row_at(address: usize) -> Option<usize> {
    load(Library::Cuda);
    REAL.iter().position(|real| real.load(Acquire) == address)
}

/// Looks for a library in the process, once it is there.
fn load(library: Library) {
    let Some(found) = FOUND.get(library as usize) else {
        return;
    };
    if found.load(Acquire) {
        return;
    }
    let _kept = errno::Kept::now();
    let path = elf::for_each(|object| match object.is_named(library.soname()) {
        true => {
            fill(library, object);
            ControlFlow::Break(object.path())
        }
        false => ControlFlow::Continue(()),
    });
    if let Some(path) = path {
        pin(path);
        found.store(true, Release);
    }
}

fn fill(library: Library, object: &Object) {
    for (row, real) in ROWS.iter().zip(&REAL) {
        if row.library == library {
            real.store(object.symbol(row.symbol).unwrap_or(0), Release);
        }
    }
    for needed in Needed::ALL
        .iter()
        .filter(|needed| needed.library() == library)
    {
        if let Some(cell) = NEEDED.get(*needed as usize) {
            cell.store(object.symbol(needed.symbol()).unwrap_or(0), Release);
        }
    }
}

/// Keeps a library loaded for good. It is in the process, so this neither loads nor fails.
fn pin(path: *const c_char) {
    type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    let Some(dlopen) = defined(c"dlopen") else {
        return;
    };
    // SAFETY: the address is that of the C library's `dlopen`.
    let dlopen = unsafe { core::mem::transmute::<usize, Dlopen>(dlopen) };
    // SAFETY: the path is the linker's own string for an object that is loaded.
    unsafe {
        dlopen(
            path,
            libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE,
        )
    };
}

/// Takes back the message of a look-up of ours that failed.
pub(crate) fn forget_message() {
    type Dlerror = unsafe extern "C" fn() -> *mut c_char;
    if let Some(dlerror) = defined(c"dlerror") {
        // SAFETY: the address is that of the C library's `dlerror`.
        let dlerror = unsafe { core::mem::transmute::<usize, Dlerror>(dlerror) };
        // SAFETY: it takes nothing.
        unsafe { dlerror() };
    }
}

/// The first definition of a function in the process.
fn defined(name: &CStr) -> Option<usize> {
    elf::for_each(|object| match object.symbol(name) {
        Some(address) => ControlFlow::Break(address),
        None => ControlFlow::Continue(()),
    })
}

/// The real functions that hooks call and that are not hooked themselves.
static NEEDED: [AtomicUsize; Needed::ALL.len()] =
    [const { AtomicUsize::new(0) }; Needed::ALL.len()];

macro_rules! needed {
    ($($library:ident $variant:ident $name:ident = $symbol:literal ($($arg:ident: $type:ty),*);)*) => {
        #[derive(Clone, Copy, PartialEq)]
        enum Needed { $($variant),* }

        impl Needed {
            const ALL: &[Self] = &[$(Self::$variant),*];

            const fn symbol(self) -> &'static CStr {
                match self { $(Self::$variant => $symbol),* }
            }

            const fn library(self) -> Library {
                match self { $(Self::$variant => Library::$library),* }
            }
        }

        $(
            #[doc = concat!("Calls the driver's function; `None` if it has none.")]
            ///
            /// # Safety
            /// As for the driver's function.
            pub(crate) unsafe fn $name($($arg: $type),*) -> Option<Status> {
                let real = NEEDED.get(Needed::$variant as usize)?.load(Acquire);
                if real == 0 {
                    return None;
                }
                // SAFETY: the address is that of the driver's function of this name, which has this
                // signature in every version of the driver.
                let real = unsafe {
                    core::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> Status>(real)
                };
                // SAFETY: the caller keeps the driver's contract.
                Some(unsafe { real($($arg),*) })
            }
        )*
    };
}

needed! {
    Cuda CtxGetCurrent ctx_get_current = c"cuCtxGetCurrent" (context: *mut Context);
    Cuda CtxGetDevice ctx_get_device = c"cuCtxGetDevice" (device: *mut Device);
    Cuda StreamGetCtx stream_get_ctx = c"cuStreamGetCtx" (stream: Stream, context: *mut Context);
    Cuda PrimaryState primary_state = c"cuDevicePrimaryCtxGetState" (device: Device, flags: *mut u32, active: *mut i32);
    Cuda Uuid device_uuid = c"cuDeviceGetUuid" (uuid: *mut [u8; 16], device: Device);
    Cuda UuidV2 device_uuid_v2 = c"cuDeviceGetUuid_v2" (uuid: *mut [u8; 16], device: Device);
    Cuda DeviceGetMemPool device_get_pool = c"cuDeviceGetMemPool" (pool: *mut Pool, device: Device);
    Cuda PoolGetAttribute pool_get_attribute = c"cuMemPoolGetAttribute" (pool: Pool, attribute: u32, value: *mut u64);
    Cuda PoolTrimTo pool_trim_to = c"cuMemPoolTrimTo" (pool: Pool, keep: usize);
    Cuda ArrayDestroy array_destroy = c"cuArrayDestroy" (array: Opaque);
    Cuda MipmappedArrayDestroy mipmapped_destroy = c"cuMipmappedArrayDestroy" (array: Opaque);
    Cuda ArrayRequirements array_requirements = c"cuArrayGetMemoryRequirements" (size: *mut ArrayRequirements, array: Opaque, device: Device);
    Cuda MipmappedRequirements mipmapped_requirements = c"cuMipmappedArrayGetMemoryRequirements" (size: *mut ArrayRequirements, array: Opaque, device: Device);
    Cuda CtxGetLimit ctx_get_limit = c"cuCtxGetLimit" (value: *mut usize, limit: u32);
    Cuda GraphNodes graph_nodes = c"cuGraphGetNodes" (graph: Opaque, nodes: *mut Opaque, count: *mut usize);
    Cuda NodeType graph_node_type = c"cuGraphNodeGetType" (node: Opaque, kind: *mut u32);
    Cuda AllocationNode allocation_node = c"cuGraphMemAllocNodeGetParams" (node: Opaque, allocation: *mut AllocationNode);
    Cuda ChildGraph child_graph = c"cuGraphChildGraphNodeGetGraph" (node: Opaque, graph: *mut Opaque);
    Cuda GraphMemory graph_memory = c"cuDeviceGetGraphMemAttribute" (device: Device, attribute: u32, value: *mut u64);
    Cuda GraphTrim graph_trim = c"cuDeviceGraphMemTrim" (device: Device);
    Cuda IsCapturing stream_is_capturing = c"cuStreamIsCapturing" (stream: Stream, status: *mut u32);
    Cuda EventCreate event_create = c"cuEventCreate" (event: *mut Event, flags: u32);
    Cuda EventRecord event_record = c"cuEventRecord" (event: Event, stream: Stream);
    Cuda EventQuery event_query = c"cuEventQuery" (event: Event);
    Cuda EventDestroy event_destroy = c"cuEventDestroy_v2" (event: Event);
    Cuda DeviceGetAttribute device_get_attribute = c"cuDeviceGetAttribute" (value: *mut i32, attribute: u32, device: Device);
    Cuda FunctionAttribute func_get_attribute = c"cuFuncGetAttribute" (value: *mut i32, attribute: u32, function: Opaque);
    Cuda KernelAttribute kernel_get_attribute = c"cuKernelGetAttribute" (value: *mut i32, attribute: u32, kernel: Opaque, device: Device);
    Cuda KernelNode kernel_node = c"cuGraphKernelNodeGetParams_v2" (node: Opaque, kernel: *mut KernelNode);
    Cuda KernelNodeV1 kernel_node_v1 = c"cuGraphKernelNodeGetParams" (node: Opaque, kernel: *mut KernelNode);
    Cuda KernelCount library_kernels = c"cuLibraryGetKernelCount" (count: *mut u32, library: Opaque);
    Cuda LoadingMode module_loading_mode = c"cuModuleGetLoadingMode" (mode: *mut u32);
    Nvml NvmlUuid nvml_uuid = c"nvmlDeviceGetUUID" (device: NvmlDevice, text: *mut c_char, length: u32);
}

/// The current context, and null without one.
pub(crate) fn current_context() -> Option<Context> {
    let mut context: Context = core::ptr::null_mut();
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { ctx_get_current(&raw mut context) }?;
    (status == SUCCESS && !context.is_null()).then_some(context)
}

/// The device of the current context.
pub(crate) fn current_device() -> Option<Device> {
    let mut device: Device = 0;
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { ctx_get_device(&raw mut device) }?;
    (status == SUCCESS).then_some(device)
}

/// The identity of a device: that of its MIG instance, where it is one.
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

/// A limit of the current context.
pub(crate) fn limit(limit: u32) -> Option<u64> {
    let mut value = 0;
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { ctx_get_limit(&raw mut value, limit) }?;
    (status == SUCCESS).then_some(value as u64)
}

/// A number that a device has.
pub(crate) fn attribute(attribute: u32, device: Device) -> Option<u64> {
    let mut value = 0;
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { device_get_attribute(&raw mut value, attribute, device) }?;
    u64::try_from(value).ok().filter(|_| status == SUCCESS)
}

/// Whether code is loaded when it is first used and not before; drivers that cannot say do not.
pub(crate) fn loads_lazily() -> bool {
    let mut mode = 0;
    // SAFETY: the pointer is to a local variable.
    let status = unsafe { module_loading_mode(&raw mut mode) };
    status == Some(SUCCESS) && mode == LAZY_LOADING
}

/// An event that happens when a stream has done what it was asked for so far.
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

/// Whether an event of ours has yet to happen. What cannot be asked about any more is over.
pub(crate) fn is_pending(event: u64) -> bool {
    // SAFETY: the event is our own, and nobody else asks about it meanwhile.
    let status = unsafe { event_query(event as Event) };
    status == Some(NOT_READY)
}

/// Destroys an event of ours.
pub(crate) fn forget_event(event: u64) {
    // SAFETY: the event is our own, and nobody else knows it any more.
    let _ = unsafe { event_destroy(event as Event) };
}

/// What a node of a graph does.
pub(crate) fn node_type(node: Opaque) -> Option<u32> {
    let mut kind = 0;
    // SAFETY: the node is one that the driver gave out, the pointer is to a local variable.
    let status = unsafe { graph_node_type(node, &raw mut kind) }?;
    (status == SUCCESS).then_some(kind)
}

/// The graph in a node of a graph.
pub(crate) fn child_of(node: Opaque) -> Option<Opaque> {
    let mut graph: Opaque = core::ptr::null_mut();
    // SAFETY: as for `node_type`.
    let status = unsafe { child_graph(node, &raw mut graph) }?;
    (status == SUCCESS).then_some(graph)
}

/// What each thread of a function has in the card's memory; with a device, of a kernel that is in no context.
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

/// How many kernels a library has.
pub(crate) fn kernels_in(library: Opaque) -> Option<u32> {
    let mut count = 0;
    // SAFETY: the library is the caller's, the pointer is to a local variable.
    let status = unsafe { library_kernels(&raw mut count, library) }?;
    (status == SUCCESS).then_some(count)
}

/// The context of a stream that is no default one.
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

/// What a node that launches a kernel launches.
pub(crate) fn kernel_of(node: Opaque) -> Option<KernelNode> {
    // SAFETY: of numbers and pointers, zeroes are valid values.
    let mut kernel: KernelNode = unsafe { core::mem::zeroed() };
    let place = &raw mut kernel;
    // SAFETY: the node is one that the driver gave out; the place is as large as the newer version's, which
    // begins like the older one's.
    let status = unsafe { kernel_node(node, place) };
    // SAFETY: as above.
    let status = status.or_else(|| unsafe { kernel_node_v1(node, place) });
    (status == Some(SUCCESS)).then_some(kernel)
}

/// Whether what is asked of a stream becomes part of a graph.
pub(crate) fn is_capturing(stream: Stream) -> bool {
    let mut capturing = 0;
    // SAFETY: the stream is the caller's, the pointer is to a local variable.
    let status = unsafe { stream_is_capturing(stream, &raw mut capturing) };
    status == Some(SUCCESS) && capturing != 0
}

/// What the driver says that a pool reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// So many bytes.
    Reserves(u64),
    /// It cannot say now.
    Unknown,
    /// There is no such pool.
    NoPool,
}

/// What a pool reserves now, also the one of a device's graphs.
pub(crate) fn pool_reserved(pool: u64) -> Reading {
    let mut reserved = 0;
    let place = &raw mut reserved;
    let status = match device_of_graphs(pool) {
        // SAFETY: the value of this attribute is 64 bits.
        Some(device) => unsafe { graph_memory(device, GRAPHS_RESERVED, place) },
        // SAFETY: the pool is one that the driver gave out, and the value of this attribute is 64 bits.
        None => unsafe { pool_get_attribute(pool as Pool, POOL_RESERVED, place) },
    };
    match status {
        Some(SUCCESS) => Reading::Reserves(reserved),
        Some(INVALID_VALUE | INVALID_HANDLE) => Reading::NoPool,
        Some(_) | None => Reading::Unknown,
    }
}

/// Makes a pool give back what it does not use, also the one of a device's graphs.
pub(crate) fn trim(pool: u64) {
    let _ = match device_of_graphs(pool) {
        // SAFETY: there is only a number.
        Some(device) => unsafe { graph_trim(device) },
        // SAFETY: the pool is one that the driver gave out, and who destroys it waits for us.
        None => unsafe { pool_trim_to(pool as Pool, 0) },
    };
}
