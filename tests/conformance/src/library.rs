//! The two driver libraries, as tables of functions.
//!
//! One row per function gives its symbol and its signature in `cuda.h` or `nvml.h`. Outputs are
//! `Option<&mut T>`, which is a pointer that may be NULL, so that a case says `None` where it means
//! NULL. A function that the library lacks answers [`Code::ABSENT`].

use std::ffi::{c_char, c_void};

use libloading::Library;

use crate::code::Code;
use crate::layout::{
    Access, AllocationNode, ArrayDescriptor, CardMemory, CardMemoryV2, HandleProperties,
    PoolProperties, Running,
};

/// A nullable output.
pub(crate) type Out<'a, T> = Option<&'a mut T>;
/// A nullable input.
pub(crate) type In<'a, T> = Option<&'a T>;

macro_rules! library {
    ($(#[$doc:meta])* $name:ident in $file:literal;
     $($method:ident = $symbol:literal ($($argument:ident: $type:ty),*);)*) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name {
            $($method: Option<extern "C" fn($($type),*) -> i32>,)*
            /// Keeps the functions where they are.
            _library: Library,
        }

        impl $name {
            /// Loads the library in the way of every CUDA program: by its name.
            pub(crate) fn open() -> Result<Self, libloading::Error> {
                // SAFETY: a driver library runs nothing at load that this program could disturb.
                let library = unsafe { Library::new($file) }?;
                Ok(Self {
                    $($method: {
                        // SAFETY: the row's signature is that of the symbol in the driver's header.
                        let found = unsafe { library.get($symbol.as_bytes()) };
                        found.ok().map(|symbol| *symbol)
                    },)*
                    _library: library,
                })
            }

            $(
                pub(crate) fn $method(&self, $($argument: $type),*) -> Code {
                    self.$method.map_or(Code::ABSENT, |function| Code(function($($argument),*)))
                }
            )*
        }
    };
}

library! {
    /// `libcuda.so.1`.
    Cuda in "libcuda.so.1";
    init = "cuInit" (flags: u32);
    driver_version = "cuDriverGetVersion" (version: Out<i32>);
    device_count = "cuDeviceGetCount" (count: Out<i32>);
    device = "cuDeviceGet" (device: Out<i32>, ordinal: i32);
    device_uuid = "cuDeviceGetUuid_v2" (uuid: Out<[u8; 16]>, device: i32);
    device_total = "cuDeviceTotalMem_v2" (bytes: Out<usize>, device: i32);
    device_attribute = "cuDeviceGetAttribute" (value: Out<i32>, attribute: i32, device: i32);
    primary_retain = "cuDevicePrimaryCtxRetain" (context: Out<usize>, device: i32);
    primary_release = "cuDevicePrimaryCtxRelease_v2" (device: i32);
    primary_reset = "cuDevicePrimaryCtxReset_v2" (device: i32);
    primary_state = "cuDevicePrimaryCtxGetState" (device: i32, flags: Out<u32>, active: Out<i32>);
    context_create = "cuCtxCreate_v2" (context: Out<usize>, flags: u32, device: i32);
    context_create_v4 = "cuCtxCreate_v4" (context: Out<usize>, parameters: *mut c_void, flags: u32, device: i32);
    context_destroy = "cuCtxDestroy_v2" (context: usize);
    context_set = "cuCtxSetCurrent" (context: usize);
    context_current = "cuCtxGetCurrent" (context: Out<usize>);
    context_pop = "cuCtxPopCurrent_v2" (context: Out<usize>);
    synchronize = "cuCtxSynchronize" ();
    memory_info = "cuMemGetInfo_v2" (free: Out<usize>, total: Out<usize>);
    alloc = "cuMemAlloc_v2" (address: Out<u64>, bytes: usize);
    alloc_pitch = "cuMemAllocPitch_v2" (address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32);
    alloc_managed = "cuMemAllocManaged" (address: Out<u64>, bytes: usize, flags: u32);
    free = "cuMemFree_v2" (address: u64);
    address_range = "cuMemGetAddressRange_v2" (base: Out<u64>, bytes: Out<usize>, address: u64);
    copy_in = "cuMemcpyHtoD_v2" (to: u64, from: *const c_void, bytes: usize);
    copy_out = "cuMemcpyDtoH_v2" (to: *mut c_void, from: u64, bytes: usize);
    copy_peer = "cuMemcpy3DPeer" (copy: *const c_void);
    set_bytes = "cuMemsetD8_v2" (address: u64, value: u8, count: usize);
    granularity = "cuMemGetAllocationGranularity" (bytes: Out<usize>, properties: In<HandleProperties>, option: i32);
    handle_create = "cuMemCreate" (handle: Out<u64>, bytes: usize, properties: In<HandleProperties>, flags: u64);
    handle_release = "cuMemRelease" (handle: u64);
    handle_retain = "cuMemRetainAllocationHandle" (handle: Out<u64>, address: *mut c_void);
    handle_export = "cuMemExportToShareableHandle" (shareable: Out<i32>, handle: u64, kind: i32, flags: u64);
    handle_import = "cuMemImportFromShareableHandle" (handle: Out<u64>, shareable: *mut c_void, kind: i32);
    reserve = "cuMemAddressReserve" (address: Out<u64>, bytes: usize, alignment: usize, hint: u64, flags: u64);
    unreserve = "cuMemAddressFree" (address: u64, bytes: usize);
    map = "cuMemMap" (address: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    unmap = "cuMemUnmap" (address: u64, bytes: usize);
    set_access = "cuMemSetAccess" (address: u64, bytes: usize, access: In<Access>, count: usize);
    alloc_async = "cuMemAllocAsync" (address: Out<u64>, bytes: usize, stream: usize);
    alloc_from_pool = "cuMemAllocFromPoolAsync" (address: Out<u64>, bytes: usize, pool: usize, stream: usize);
    free_async = "cuMemFreeAsync" (address: u64, stream: usize);
    default_pool = "cuDeviceGetDefaultMemPool" (pool: Out<usize>, device: i32);
    pool_create = "cuMemPoolCreate" (pool: Out<usize>, properties: In<PoolProperties>);
    pool_destroy = "cuMemPoolDestroy" (pool: usize);
    pool_trim = "cuMemPoolTrimTo" (pool: usize, keep: usize);
    pool_get = "cuMemPoolGetAttribute" (pool: usize, attribute: i32, value: Out<u64>);
    pool_set = "cuMemPoolSetAttribute" (pool: usize, attribute: i32, value: Out<u64>);
    graph_create = "cuGraphCreate" (graph: Out<usize>, flags: u32);
    graph_alloc = "cuGraphAddMemAllocNode" (node: Out<usize>, graph: usize, after: In<usize>, count: usize, allocation: Out<AllocationNode>);
    graph_free = "cuGraphAddMemFreeNode" (node: Out<usize>, graph: usize, after: In<usize>, count: usize, address: u64);
    graph_instantiate = "cuGraphInstantiateWithFlags" (exec: Out<usize>, graph: usize, flags: u64);
    graph_upload = "cuGraphUpload" (exec: usize, stream: usize);
    graph_launch = "cuGraphLaunch" (exec: usize, stream: usize);
    graph_trim = "cuDeviceGraphMemTrim" (device: i32);
    graph_memory = "cuDeviceGetGraphMemAttribute" (device: i32, attribute: i32, value: Out<u64>);
    array_create = "cuArrayCreate_v2" (array: Out<usize>, descriptor: In<ArrayDescriptor>);
    array_destroy = "cuArrayDestroy" (array: usize);
    array_descriptor = "cuArrayGetDescriptor_v2" (descriptor: Out<ArrayDescriptor>, array: usize);
    module_load = "cuModuleLoadData" (module: Out<usize>, image: *const c_char);
    module_function = "cuModuleGetFunction" (function: Out<usize>, module: usize, name: *const c_char);
    module_unload = "cuModuleUnload" (module: usize);
    error_name = "cuGetErrorName" (error: i32, text: Out<*const c_char>);
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" (mode: Out<i32>);
    lookup = "cuGetProcAddress_v2" (symbol: *const c_char, function: Out<usize>, version: i32, flags: u64, status: Out<i32>);
    lookup_v1 = "cuGetProcAddress" (symbol: *const c_char, function: Out<usize>, version: i32, flags: u64);
}

library! {
    /// `libnvidia-ml.so.1`.
    Nvml in "libnvidia-ml.so.1";
    init = "nvmlInit_v2" ();
    count = "nvmlDeviceGetCount_v2" (count: Out<u32>);
    by_uuid = "nvmlDeviceGetHandleByUUID" (uuid: *const c_char, device: Out<usize>);
    memory = "nvmlDeviceGetMemoryInfo" (device: usize, memory: Out<CardMemory>);
    memory_v2 = "nvmlDeviceGetMemoryInfo_v2" (device: usize, memory: Out<CardMemoryV2>);
    running = "nvmlDeviceGetComputeRunningProcesses_v3" (device: usize, count: Out<u32>, processes: *mut Running);
}

impl Cuda {
    /// The address of an exported symbol.
    pub(crate) fn address(&self, symbol: &str) -> Option<usize> {
        // SAFETY: an address is as large as a `usize`, and it is only looked at.
        let found = unsafe { self._library.get::<usize>(symbol.as_bytes()) };
        found.ok().map(|address| *address)
    }
}
