//! The driver's functions that the hooks call themselves.

use core::ffi::c_char;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};

use super::capture_mode;
use crate::elf::{HashedSymbol, LoadedObject};
use crate::foreign::{
    AllocationNode, ArrayRequirements, Context, Device, DevicePointer, Event, Handle, KernelNode,
    NvmlDevice, Opaque, WholeNodeParameters,
};
use crate::foreign::{Pool, Status, Stream};
use crate::table::DriverLibrary;

/// Their addresses; 0 if there is none or it is not known yet.
/// Written by: [`fill`], always with the same values. Read by: the hooks. Release/Acquire.
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
                let _mode = capture_mode::$mode(exchange_capture_mode);
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

/// Notes the addresses in a library that was found.
pub(super) fn fill(library: DriverLibrary, object: &LoadedObject) {
    let all = RequiredFunction::ALL.iter();
    for needed in all.filter(|needed| needed.library() == library) {
        if let Some(cell) = NEEDED.get(*needed as usize) {
            cell.store(object.address_of(needed.symbol()).unwrap_or(0), Release);
        }
    }
}

// Each row says in which capture mode the function may be called; see [`capture_mode`].
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
