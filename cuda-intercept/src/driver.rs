//! The driver's own functions, and where they are once the program has loaded the driver.
//!
//! The libraries are recognised by their soname, not by their path. So a driver in a Python wheel, in a compatibility
//! folder or under WSL is found too. This library never loads a driver: a program without one gets what it would get
//! without us. A driver that is found is pinned, so that its addresses stay valid.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::ControlFlow;
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use crate::elf::{self, HashedSymbol, LoadedObject};
use crate::errno;
use crate::foreign::{
    AllocationNode, ArrayRequirements, Context, Device, DevicePointer, Event, Handle, KernelNode,
    NvmlDevice, Opaque, WholeNodeParameters,
};
use crate::foreign::{Pool, Status, Stream};
use crate::table::{COUNT, DriverLibrary, ROWS};

mod capture_mode;
mod queries;

pub(crate) use queries::{
    PoolReading, attribute, child_of, conditional_of, context_of, current_context, current_device,
    devices, event_behind, forget_event, freed_by, is_capturing, is_pending, is_started, kernel_of,
    kernels_in, limit, loads_lazily, local_bytes, node_type, pool_reserved, primary_handle,
    primary_is_active, trim, uuid_of,
};

/// The real function of each row; 0 if there is none or it is not known yet.
/// Written by: [`load`], always with the same values. Read by: every hook. Release/Acquire.
static REAL: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

/// Whether a library was found and its rows are filled in.
/// Written by: [`load`], after `REAL`. Read by: every lookup. Release/Acquire.
static FOUND: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// The address range of each library, which is pinned; zeroes until it is found.
/// Written by: [`load`], before `FOUND`, always with the same values. Read by: every lookup, and hooks that check
/// their caller. Release/Acquire.
static SPANS: [[AtomicUsize; 2]; 2] = [const { [const { AtomicUsize::new(0) }; 2] }; 2];

/// Whether an address lies in the hooked library. Looks for the library first.
pub(crate) fn is_in(library: DriverLibrary, address: usize) -> bool {
    load(library);
    is_within(library, address)
}

/// Whether an address lies in a library, if that was found already.
#[inline]
pub(crate) fn is_within(library: DriverLibrary, address: usize) -> bool {
    let Some([start, end]) = SPANS.get(library as usize) else {
        return false;
    };
    (start.load(Acquire)..end.load(Acquire)).contains(&address)
}

/// A function of the hooked library, by name. The function itself may be unhooked.
pub(crate) fn function(library: DriverLibrary, name: &CStr) -> Option<usize> {
    load(library);
    let [start, _] = SPANS.get(library as usize)?;
    let start = start.load(Acquire);
    elf::for_each(|object| match object.span().start == start {
        true => ControlFlow::Break(object.symbol(name)),
        false => ControlFlow::Continue(()),
    })?
}

/// The real function of a row, if the library is loaded and has it.
#[inline]
pub(crate) fn real(place: usize, library: DriverLibrary) -> Option<usize> {
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
    load(DriverLibrary::Cuda);
    REAL.iter().position(|real| real.load(Acquire) == address)
}

/// Looks for a library in the process, until it is found.
fn load(library: DriverLibrary) {
    let Some(found) = FOUND.get(library as usize) else {
        return;
    };
    if found.load(Acquire) {
        return;
    }
    let _kept = errno::ErrnoGuard::now();
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

fn fill(library: DriverLibrary, object: &LoadedObject) {
    if let Some([start, end]) = SPANS.get(library as usize) {
        start.store(object.span().start, Release);
        end.store(object.span().end, Release);
    }
    for (row, real) in ROWS.iter().zip(&REAL) {
        if row.library == library {
            real.store(object.address_of(row.exported).unwrap_or(0), Release);
        }
    }
    for needed in RequiredFunction::ALL
        .iter()
        .filter(|needed| needed.library() == library)
    {
        if let Some(cell) = NEEDED.get(*needed as usize) {
            cell.store(object.address_of(needed.symbol()).unwrap_or(0), Release);
        }
    }
}

/// Keeps a loaded library loaded for good. It is already loaded, so this neither loads nor fails.
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

/// Clears the `dlerror` message of a failed lookup of ours.
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

/// The real functions that the hooks call themselves. Each row says in which capture mode the function may be called;
/// see [`capture_mode`].
static NEEDED: [AtomicUsize; RequiredFunction::ALL.len()] =
    [const { AtomicUsize::new(0) }; RequiredFunction::ALL.len()];

macro_rules! needed {
    ($($library:ident $mode:ident $variant:ident $name:ident = $symbol:literal ($($arg:ident: $type:ty),*);)*) => {
        #[derive(Clone, Copy, PartialEq)]
        enum RequiredFunction { $($variant),* }

        impl RequiredFunction {
            const ALL: &[Self] = &[$(Self::$variant),*];

            const fn symbol(self) -> HashedSymbol<'static> {
                match self { $(Self::$variant => const { HashedSymbol::of($symbol) }),* }
            }

            const fn library(self) -> DriverLibrary {
                match self { $(Self::$variant => DriverLibrary::$library),* }
            }
        }

        $(
            #[doc = concat!("Calls the driver's function; `None` if it has none.")]
            ///
            /// # Safety
            /// As for the driver's function.
            pub(crate) unsafe fn $name($($arg: $type),*) -> Option<Status> {
                let real = NEEDED.get(RequiredFunction::$variant as usize)?.load(Acquire);
                if real == 0 {
                    return None;
                }
                let _mode = capture_mode::$mode();
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
    Cuda anytime CtxGetCurrent ctx_get_current = c"cuCtxGetCurrent" (context: *mut Context);
    Cuda anytime CtxGetDevice ctx_get_device = c"cuCtxGetDevice" (device: *mut Device);
    Cuda anytime StreamGetCtx stream_get_ctx = c"cuStreamGetCtx" (stream: Stream, context: *mut Context);
    Cuda anytime PrimaryState primary_state = c"cuDevicePrimaryCtxGetState" (device: Device, flags: *mut u32, active: *mut i32);
    Cuda relaxed PrimaryRetain primary_retain = c"cuDevicePrimaryCtxRetain" (context: *mut Context, device: Device);
    Cuda relaxed PrimaryRelease primary_release = c"cuDevicePrimaryCtxRelease_v2" (device: Device);
    Cuda relaxed PrimaryReleaseV1 primary_release_v1 = c"cuDevicePrimaryCtxRelease" (device: Device);
    Cuda relaxed MemFree mem_free = c"cuMemFree_v2" (address: DevicePointer);
    Cuda relaxed MemRelease mem_release = c"cuMemRelease" (handle: Handle);
    Cuda anytime Uuid device_uuid = c"cuDeviceGetUuid" (uuid: *mut [u8; 16], device: Device);
    Cuda anytime UuidV2 device_uuid_v2 = c"cuDeviceGetUuid_v2" (uuid: *mut [u8; 16], device: Device);
    Cuda relaxed DeviceGetMemPool device_get_pool = c"cuDeviceGetMemPool" (pool: *mut Pool, device: Device);
    Cuda relaxed PoolGetAttribute pool_get_attribute = c"cuMemPoolGetAttribute" (pool: Pool, attribute: u32, value: *mut u64);
    Cuda relaxed PoolTrimTo pool_trim_to = c"cuMemPoolTrimTo" (pool: Pool, keep: usize);
    Cuda relaxed ArrayDestroy array_destroy = c"cuArrayDestroy" (array: Opaque);
    Cuda relaxed MipmappedArrayDestroy mipmapped_destroy = c"cuMipmappedArrayDestroy" (array: Opaque);
    Cuda relaxed ArrayRequirements array_requirements = c"cuArrayGetMemoryRequirements" (size: *mut ArrayRequirements, array: Opaque, device: Device);
    Cuda relaxed MipmappedRequirements mipmapped_requirements = c"cuMipmappedArrayGetMemoryRequirements" (size: *mut ArrayRequirements, array: Opaque, device: Device);
    Cuda relaxed CtxGetLimit ctx_get_limit = c"cuCtxGetLimit" (value: *mut usize, limit: u32);
    Cuda anytime GraphNodes graph_nodes = c"cuGraphGetNodes" (graph: Opaque, nodes: *mut Opaque, count: *mut usize);
    Cuda anytime NodeType graph_node_type = c"cuGraphNodeGetType" (node: Opaque, kind: *mut u32);
    Cuda anytime AllocationNode allocation_node = c"cuGraphMemAllocNodeGetParams" (node: Opaque, allocation: *mut AllocationNode);
    Cuda anytime FreeNode free_node = c"cuGraphMemFreeNodeGetParams" (node: Opaque, address: *mut DevicePointer);
    Cuda anytime ChildGraph child_graph = c"cuGraphChildGraphNodeGetGraph" (node: Opaque, graph: *mut Opaque);
    Cuda anytime NodeParameters node_parameters = c"cuGraphNodeGetParams" (node: Opaque, parameters: *mut WholeNodeParameters);
    Cuda relaxed GraphMemory graph_memory = c"cuDeviceGetGraphMemAttribute" (device: Device, attribute: u32, value: *mut u64);
    Cuda relaxed GraphTrim graph_trim = c"cuDeviceGraphMemTrim" (device: Device);
    Cuda anytime ExchangeMode exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode" (mode: *mut u32);
    Cuda anytime IsCapturing stream_is_capturing = c"cuStreamIsCapturing" (stream: Stream, status: *mut u32);
    Cuda relaxed EventCreate event_create = c"cuEventCreate" (event: *mut Event, flags: u32);
    Cuda relaxed EventRecord event_record = c"cuEventRecord" (event: Event, stream: Stream);
    Cuda relaxed EventQuery event_query = c"cuEventQuery" (event: Event);
    Cuda relaxed EventDestroy event_destroy = c"cuEventDestroy_v2" (event: Event);
    Cuda anytime DeviceCount device_count = c"cuDeviceGetCount" (count: *mut i32);
    Cuda anytime DeviceGetAttribute device_get_attribute = c"cuDeviceGetAttribute" (value: *mut i32, attribute: u32, device: Device);
    Cuda relaxed FunctionAttribute func_get_attribute = c"cuFuncGetAttribute" (value: *mut i32, attribute: u32, function: Opaque);
    Cuda relaxed KernelAttribute kernel_get_attribute = c"cuKernelGetAttribute" (value: *mut i32, attribute: u32, kernel: Opaque, device: Device);
    Cuda anytime KernelNode kernel_node = c"cuGraphKernelNodeGetParams_v2" (node: Opaque, kernel: *mut KernelNode);
    Cuda anytime KernelNodeV1 kernel_node_v1 = c"cuGraphKernelNodeGetParams" (node: Opaque, kernel: *mut KernelNode);
    Cuda relaxed KernelCount library_kernels = c"cuLibraryGetKernelCount" (count: *mut u32, library: Opaque);
    Cuda anytime LoadingMode module_loading_mode = c"cuModuleGetLoadingMode" (mode: *mut u32);
    Nvml anytime NvmlUuid nvml_uuid = c"nvmlDeviceGetUUID" (device: NvmlDevice, text: *mut c_char, length: u32);
}
