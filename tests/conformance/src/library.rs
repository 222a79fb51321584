//! The two driver libraries, as tables of functions.
//!
//! Each row has a function's symbol and its signature in `cuda.h` or `nvml.h`. Outputs are `Option<&mut T>`, which is a
//! nullable pointer, so a case writes `None` for NULL. A function that the library lacks returns
//! [`ResultCode::ABSENT`].
#![expect(clippy::too_many_arguments, reason = "the driver's own signatures")]

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;

use libloading::Library;

use crate::code::ResultCode;
use crate::layout::{
    AllocationNode, ArrayDescriptor, CardMemory, CardMemoryV2, CopyAttributes, CopyOfRows,
    FillNode, HandleProperties, HostNode, KernelNode, Location, LockArguments, PoolProperties,
    ReadWriteAccess, RunningProcess, SmGroupParams, SmResource, TextureResource, TextureSampling,
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
            _library: ManuallyDrop<Library>,
        }

        impl $name {
            /// Loads the library as every CUDA program does: by its name, and until the program ends.
            ///
            /// A driver starts threads and installs exit handlers. Drivers of branch 555 crash if they are unloaded
            /// after `cuInit`.
            pub(crate) fn open() -> Result<Self, libloading::Error> {
                // SAFETY: at load time a driver library runs nothing that could disturb this program.
                let library = ManuallyDrop::new(unsafe { Library::new($file) }?);
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
                pub(crate) fn $method(&self, $($argument: $type),*) -> ResultCode {
                    self.$method.map_or(ResultCode::ABSENT, |function| ResultCode(function($($argument),*)))
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
    process_state = "cuCheckpointProcessGetState" (process: i32, state: Out<u32>);
    process_lock = "cuCheckpointProcessLock" (process: i32, arguments: In<LockArguments>);
    process_checkpoint = "cuCheckpointProcessCheckpoint" (process: i32, arguments: In<[u64; 8]>);
    process_restore = "cuCheckpointProcessRestore" (process: i32, arguments: In<[u64; 8]>);
    process_unlock = "cuCheckpointProcessUnlock" (process: i32, arguments: In<[u64; 8]>);
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
    set_access = "cuMemSetAccess" (address: u64, bytes: usize, access: In<ReadWriteAccess>, count: usize);
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
    graph_destroy = "cuGraphDestroy" (graph: usize);
    graph_empty = "cuGraphAddEmptyNode" (node: Out<usize>, graph: usize, after: *const usize, count: usize);
    graph_fill = "cuGraphAddMemsetNode" (node: Out<usize>, graph: usize, after: In<usize>, count: usize, fill: In<FillNode>, context: usize);
    exec_fill = "cuGraphExecMemsetNodeSetParams" (exec: usize, node: usize, fill: In<FillNode>, context: usize);
    exec_update = "cuGraphExecUpdate_v2" (exec: usize, graph: usize, info: Out<[u64; 3]>);
    graph_clone = "cuGraphClone" (clone: Out<usize>, graph: usize);
    graph_nodes = "cuGraphGetNodes" (graph: usize, nodes: *mut usize, count: Out<usize>);
    graph_roots = "cuGraphGetRootNodes" (graph: usize, nodes: *mut usize, count: Out<usize>);
    graph_edges = "cuGraphGetEdges" (graph: usize, from: *mut usize, to: *mut usize, count: Out<usize>);
    graph_connect = "cuGraphAddDependencies" (graph: usize, from: In<usize>, to: In<usize>, count: usize);
    graph_disconnect = "cuGraphRemoveDependencies" (graph: usize, from: In<usize>, to: In<usize>, count: usize);
    node_dependencies = "cuGraphNodeGetDependencies" (node: usize, nodes: *mut usize, count: Out<usize>);
    node_dependents = "cuGraphNodeGetDependentNodes" (node: usize, nodes: *mut usize, count: Out<usize>);
    node_in_clone = "cuGraphNodeFindInClone" (node: Out<usize>, original: usize, clone: usize);
    node_destroy = "cuGraphDestroyNode" (node: usize);
    stream_create = "cuStreamCreate" (stream: Out<usize>, flags: u32);
    event_create = "cuEventCreate" (event: Out<usize>, flags: u32);
    event_record = "cuEventRecord" (event: usize, stream: usize);
    stream_wait = "cuStreamWaitEvent" (stream: usize, event: usize, flags: u32);
    set_bytes_async = "cuMemsetD8Async" (to: u64, value: u8, count: usize, stream: usize);
    begin_capture = "cuStreamBeginCapture_v2" (stream: usize, mode: i32);
    begin_capture_to = "cuStreamBeginCaptureToGraph" (stream: usize, graph: usize, after: In<usize>, data: *const c_void, count: usize, mode: i32);
    end_capture = "cuStreamEndCapture" (stream: usize, graph: Out<usize>);
    capture_info = "cuStreamGetCaptureInfo_v2" (stream: usize, status: Out<i32>, id: Out<u64>, graph: Out<usize>, nodes: Out<*const usize>, count: Out<usize>);
    update_capture = "cuStreamUpdateCaptureDependencies" (stream: usize, nodes: *const usize, count: usize, flags: u32);
    device_resource = "cuDeviceGetDevResource" (device: i32, resource: Out<SmResource>, kind: u32);
    context_resource = "cuCtxGetDevResource" (context: usize, resource: Out<SmResource>, kind: u32);
    green_resource = "cuGreenCtxGetDevResource" (context: usize, resource: Out<SmResource>, kind: u32);
    split_resource = "cuDevSmResourceSplitByCount" (groups: *mut SmResource, count: Out<u32>, input: In<SmResource>, remainder: Out<SmResource>, flags: u32, least: u32);
    describe_resources = "cuDevResourceGenerateDesc" (description: Out<usize>, resources: *mut SmResource, count: u32);
    green_create = "cuGreenCtxCreate" (context: Out<usize>, description: usize, device: i32, flags: u32);
    green_destroy = "cuGreenCtxDestroy" (context: usize);
    green_stream = "cuGreenCtxStreamCreate" (stream: Out<usize>, context: usize, flags: u32, priority: i32);
    stream_context = "cuStreamGetCtx_v2" (stream: usize, context: Out<usize>, green: Out<usize>);
    stream_destroy = "cuStreamDestroy_v2" (stream: usize);
    green_id = "cuGreenCtxGetId" (context: usize, id: Out<u64>);
    green_record = "cuGreenCtxRecordEvent" (context: usize, event: usize);
    green_wait = "cuGreenCtxWaitEvent" (context: usize, event: usize);
    split_by_wishes = "cuDevSmResourceSplit" (groups: *mut SmResource, count: u32, input: In<SmResource>, remainder: Out<SmResource>, flags: u32, wishes: *mut SmGroupParams);
    graph_child = "cuGraphAddChildGraphNode" (node: Out<usize>, graph: usize, after: In<usize>, count: usize, child: usize);
    graph_record = "cuGraphAddEventRecordNode" (node: Out<usize>, graph: usize, after: In<usize>, count: usize, event: usize);
    graph_wait = "cuGraphAddEventWaitNode" (node: Out<usize>, graph: usize, after: In<usize>, count: usize, event: usize);
    graph_host = "cuGraphAddHostNode" (node: Out<usize>, graph: usize, after: In<usize>, count: usize, call: In<HostNode>);
    graph_kernel = "cuGraphAddKernelNode_v2" (node: Out<usize>, graph: usize, after: In<usize>, count: usize, kernel: In<KernelNode>);
    graph_print = "cuGraphDebugDotPrint" (graph: usize, path: *const c_char, flags: u32);
    graph_retain = "cuGraphRetainUserObject" (graph: usize, object: usize, count: u32, flags: u32);
    node_type = "cuGraphNodeGetType" (node: usize, kind: Out<u32>);
    node_fill = "cuGraphMemsetNodeGetParams" (node: usize, fill: Out<FillNode>);
    node_set_fill = "cuGraphMemsetNodeSetParams" (node: usize, fill: In<FillNode>);
    node_kernel = "cuGraphKernelNodeGetParams_v2" (node: usize, kernel: Out<KernelNode>);
    node_recorded = "cuGraphEventRecordNodeGetEvent" (node: usize, event: Out<usize>);
    node_set_recorded = "cuGraphEventRecordNodeSetEvent" (node: usize, event: usize);
    node_awaited = "cuGraphEventWaitNodeGetEvent" (node: usize, event: Out<usize>);
    node_child = "cuGraphChildGraphNodeGetGraph" (node: usize, graph: Out<usize>);
    exec_record = "cuGraphExecEventRecordNodeSetEvent" (exec: usize, node: usize, event: usize);
    exec_enable = "cuGraphNodeSetEnabled" (exec: usize, node: usize, is_enabled: u32);
    exec_enabled = "cuGraphNodeGetEnabled" (exec: usize, node: usize, is_enabled: Out<u32>);
    exec_flags = "cuGraphExecGetFlags" (exec: usize, flags: Out<u64>);
    exec_destroy = "cuGraphExecDestroy" (exec: usize);
    event_elapsed = "cuEventElapsedTime" (milliseconds: Out<f32>, start: usize, end: usize);
    event_query = "cuEventQuery" (event: usize);
    object_create = "cuUserObjectCreate" (object: Out<usize>, thing: *mut c_void, end: extern "C" fn(*mut c_void), references: u32, flags: u32);
    object_release = "cuUserObjectRelease" (object: usize, count: u32);
    texture_create = "cuTexObjectCreate" (texture: Out<u64>, resource: In<TextureResource>, sampling: In<TextureSampling>, view: *const c_void);
    texture_destroy = "cuTexObjectDestroy" (texture: u64);
    texture_resource = "cuTexObjectGetResourceDesc" (resource: Out<TextureResource>, texture: u64);
    texture_sampling = "cuTexObjectGetTextureDesc" (sampling: Out<TextureSampling>, texture: u64);
    texture_view = "cuTexObjectGetResourceViewDesc" (view: Out<[u64; 14]>, texture: u64);
    surface_create = "cuSurfObjectCreate" (surface: Out<u64>, resource: In<TextureResource>);
    surface_destroy = "cuSurfObjectDestroy" (surface: u64);
    surface_resource = "cuSurfObjectGetResourceDesc" (resource: Out<TextureResource>, surface: u64);
    copy_batch_v1 = "cuMemcpyBatchAsync" (to: *const u64, from: *const u64, sizes: *const usize, count: usize, attributes: In<CopyAttributes>, starts: *const usize, kinds: usize, failed: Out<usize>, stream: usize);
    copy_batch = "cuMemcpyBatchAsync_v2" (to: *const u64, from: *const u64, sizes: *const usize, count: usize, attributes: In<CopyAttributes>, starts: *const usize, kinds: usize, stream: usize);
    copy_rows_batch = "cuMemcpy3DBatchAsync_v2" (count: usize, copies: In<CopyOfRows>, flags: u64, stream: usize);
    prefetch_batch = "cuMemPrefetchBatchAsync" (addresses: *const u64, sizes: *const usize, count: usize, places: In<Location>, starts: *const usize, kinds: usize, flags: u64, stream: usize);
    link_create = "cuLinkCreate_v2" (count: u32, options: *mut u32, values: *mut usize, link: Out<usize>);
    link_add = "cuLinkAddData_v2" (link: usize, kind: u32, data: *const c_char, bytes: usize, name: *const c_char, count: u32, options: *mut u32, values: *mut usize);
    link_complete = "cuLinkComplete" (link: usize, cubin: Out<*const c_char>, bytes: Out<usize>);
    link_destroy = "cuLinkDestroy" (link: usize);
    array_create = "cuArrayCreate_v2" (array: Out<usize>, descriptor: In<ArrayDescriptor>);
    array_destroy = "cuArrayDestroy" (array: usize);
    array_descriptor = "cuArrayGetDescriptor_v2" (descriptor: Out<ArrayDescriptor>, array: usize);
    module_load = "cuModuleLoadData" (module: Out<usize>, image: *const c_char);
    module_function = "cuModuleGetFunction" (function: Out<usize>, module: usize, name: *const c_char);
    module_global = "cuModuleGetGlobal_v2" (address: Out<u64>, bytes: Out<usize>, module: usize, name: *const c_char);
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
    running = "nvmlDeviceGetComputeRunningProcesses_v3" (device: usize, count: Out<u32>, processes: *mut RunningProcess);
}

impl Cuda {
    /// The address of an exported symbol.
    pub(crate) fn address(&self, symbol: &str) -> Option<usize> {
        // SAFETY: an address has the size of a `usize`, and only its value is used.
        let found = unsafe { self._library.get::<usize>(symbol.as_bytes()) };
        found.ok().map(|address| *address)
    }
}
