//! The table of all hooked functions: their versions, and what each hook does.
//!
//! [`ROWS`] lists them. Lookups by `dlsym` and `cuGetProcAddress` search it, and `apportion hooks` prints it.
//! [`entry_points`](crate::entry_points) makes a function of each row. To add a hook, add a row.
//!
//! A row lists the exported symbol with its arguments, the name that `cuGetProcAddress` knows, the driver version
//! that introduced this signature, the function that does the work (it gets the driver's own function first), and a
//! description. Symbols that end in `_ptsz` are those of the per-thread default stream.

use core::ffi::CStr;

use crate::elf::HashedSymbol;
use crate::foreign::{NOT_INITIALIZED, NVML_UNINITIALIZED, Status};

/// The library that a hooked function belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverLibrary {
    /// The CUDA driver.
    Cuda,
    /// NVML, the management library.
    Nvml,
}

impl DriverLibrary {
    /// The name under which the dynamic linker knows the library.
    #[must_use]
    pub const fn soname(self) -> &'static CStr {
        match self {
            Self::Cuda => c"libcuda.so.1",
            Self::Nvml => c"libnvidia-ml.so.1",
        }
    }

    /// What the hooks return when the library is not loaded.
    pub(crate) const fn absent(self) -> Status {
        match self {
            Self::Cuda => NOT_INITIALIZED,
            Self::Nvml => NVML_UNINITIALIZED,
        }
    }
}

/// One hooked function in one of its versions.
#[derive(Clone, Copy, Debug)]
pub struct HookedFunction {
    /// The name that the library exports.
    pub symbol: &'static CStr,
    /// The exported symbol with its hash, for lookups.
    pub(crate) exported: HashedSymbol<'static>,
    /// The name without a version, as `cuGetProcAddress` takes it.
    pub name: &'static str,
    /// The CUDA version (or the version of the NVML function) that introduced this signature.
    pub version: u32,
    /// The library that the function belongs to.
    pub library: DriverLibrary,
    /// What the hook does, in a few words.
    pub what: &'static str,
    /// Whether a program without a limit gets the driver's own function instead of the hook.
    pub(crate) is_for_limits: bool,
    /// Its place in the table.
    pub(crate) index: HookIndex,
}

const fn terminated(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(symbol) => symbol,
        Err(_) => c"",
    }
}

/// Passes all rows to the macro of this name.
macro_rules! for_each_hook {
    ($then:ident) => {
        $then! {
            // Linear memory.
            Cuda cuMemAlloc(address: *mut u32, bytes: u32) = "cuMemAlloc" @ 2000 => linear::alloc_v1, "charges linear memory";
            Cuda cuMemAlloc_v2(address: *mut DevicePointer, bytes: usize) = "cuMemAlloc" @ 3020 => linear::alloc, "charges linear memory";
            Cuda cuMemAllocPitch(address: *mut u32, pitch: *mut u32, width: u32, height: u32, element: u32) = "cuMemAllocPitch" @ 2000 => linear::alloc_pitch_v1, "charges pitched memory";
            Cuda cuMemAllocPitch_v2(address: *mut DevicePointer, pitch: *mut usize, width: usize, height: usize, element: u32) = "cuMemAllocPitch" @ 3020 => linear::alloc_pitch, "charges pitched memory";
            Cuda cuMemAllocManaged(address: *mut DevicePointer, bytes: usize, flags: u32) = "cuMemAllocManaged" @ 6000 => linear::alloc_managed, "charges managed memory in full";
            Cuda cuMemFree(address: u32) = "cuMemFree" @ 2000 => linear::free_v1, "uncharges linear memory";
            Cuda cuMemFree_v2(address: DevicePointer) = "cuMemFree" @ 3020 => linear::free, "uncharges linear memory";
            // Arrays.
            Cuda cuArrayCreate(array: *mut Opaque, shape: *const ArrayShapeV1) = "cuArrayCreate" @ 2000 => array::create, "charges an array";
            Cuda cuArrayCreate_v2(array: *mut Opaque, shape: *const ArrayShape) = "cuArrayCreate" @ 3020 => array::create, "charges an array";
            Cuda cuArray3DCreate(array: *mut Opaque, shape: *const ArrayShape3dV1) = "cuArray3DCreate" @ 2000 => array::create, "charges an array";
            Cuda cuArray3DCreate_v2(array: *mut Opaque, shape: *const ArrayShape3d) = "cuArray3DCreate" @ 3020 => array::create, "charges an array";
            Cuda cuArrayDestroy(array: Opaque) = "cuArrayDestroy" @ 2000 => array::destroy, "uncharges an array";
            Cuda cuMipmappedArrayCreate(array: *mut Opaque, shape: *const ArrayShape3d, levels: u32) = "cuMipmappedArrayCreate" @ 5000 => array::create_mipmapped, "charges a mipmapped array";
            Cuda cuMipmappedArrayDestroy(array: Opaque) = "cuMipmappedArrayDestroy" @ 5000 => array::destroy, "uncharges a mipmapped array";
            // Virtual memory.
            Cuda cuMemCreate(handle: *mut Handle, bytes: usize, properties: *const AllocationProperties, flags: u64) = "cuMemCreate" @ 10020 => vmm::create, "charges physical memory on the GPU of its location";
            Cuda cuMemRelease(handle: Handle) = "cuMemRelease" @ 10020 => vmm::release, "drops a handle; uncharges with the last handle and mapping";
            Cuda cuMemMap(address: DevicePointer, bytes: usize, offset: usize, handle: Handle, flags: u64) = "cuMemMap" @ 10020 => vmm::map, "counts a mapping of physical memory";
            Cuda cuMemUnmap(address: DevicePointer, bytes: usize) = "cuMemUnmap" @ 10020 => vmm::unmap, "drops mappings; uncharges with the last handle and mapping";
            Cuda cuMemRetainAllocationHandle(handle: *mut Handle, address: Opaque) = "cuMemRetainAllocationHandle" @ 11000 => vmm::retain, "counts a handle of mapped memory";
            Cuda cuMemMapArrayAsync(tiles: *const ArrayMap, count: u32, stream: Stream) = "cuMemMapArrayAsync" @ 11010 => bindings::map_array, "counts tiles of arrays as mappings of physical memory";
            Cuda cuMemMapArrayAsync_ptsz(tiles: *const ArrayMap, count: u32, stream: Stream) = "cuMemMapArrayAsync" @ 11010 => bindings::map_array, "counts tiles of arrays as mappings of physical memory";
            Cuda cuMulticastCreate(handle: *mut Handle, properties: Opaque) = "cuMulticastCreate" @ 12010 => bindings::create_multicast, "counts the handles of a multicast object";
            Cuda cuMulticastBindMem(object: Handle, offset: usize, handle: Handle, at: usize, bytes: usize, flags: u64) = "cuMulticastBindMem" @ 12010 => bindings::bind, "counts bound memory as mapped";
            Cuda cuMulticastBindMem_v2(object: Handle, device: Device, offset: usize, handle: Handle, at: usize, bytes: usize, flags: u64) = "cuMulticastBindMem" @ 13010 => bindings::bind_on, "counts bound memory as mapped";
            Cuda cuMulticastBindAddr(object: Handle, offset: usize, address: DevicePointer, bytes: usize, flags: u64) = "cuMulticastBindAddr" @ 12010 => bindings::bind_address, "counts bound memory as mapped";
            Cuda cuMulticastBindAddr_v2(object: Handle, device: Device, offset: usize, address: DevicePointer, bytes: usize, flags: u64) = "cuMulticastBindAddr" @ 13010 => bindings::bind_address_on, "counts bound memory as mapped";
            Cuda cuMulticastUnbind(object: Handle, device: Device, offset: usize, bytes: usize) = "cuMulticastUnbind" @ 12010 => bindings::unbind, "drops a binding; uncharges with the last handle, mapping and binding";
            Cuda cuLogicalEndpointBindMem(endpoint: u32, device: Device, offset: usize, handle: Handle, at: usize, bytes: usize, flags: u64) = "cuLogicalEndpointBindMem" @ 13030 => bindings::bind_to_endpoint, "counts bound memory as mapped";
            Cuda cuLogicalEndpointBindAddr(endpoint: u32, device: Device, offset: usize, address: DevicePointer, bytes: usize, flags: u64) = "cuLogicalEndpointBindAddr" @ 13030 => bindings::bind_address_to_endpoint, "counts bound memory as mapped";
            Cuda cuLogicalEndpointUnbind(endpoint: u32, device: Device, offset: usize, bytes: usize) = "cuLogicalEndpointUnbind" @ 13030 => bindings::unbind_from_endpoint, "drops a binding; uncharges with the last handle, mapping and binding";
            Cuda cuLogicalEndpointDestroy(endpoint: u32) = "cuLogicalEndpointDestroy" @ 13030 => bindings::destroy_endpoint, "drops a binding; uncharges with the last handle, mapping and binding";
            Cuda cuMemImportFromShareableHandle(handle: *mut Handle, shared: Opaque, kind: u32) = "cuMemImportFromShareableHandle" @ 10020 => shared_memory::import, "counts a handle that is charged to another process; the charge stays if that process ends first";
            Cuda cuMemExportToShareableHandle(shared: Opaque, handle: Handle, kind: u32, flags: u64) = "cuMemExportToShareableHandle" @ 10020 => shared_memory::export, "exports physical memory; it stays charged while a process of the account holds it or a descriptor of it is open";
            // Memory for other processes and devices.
            Cuda cuMemGetHandleForAddressRange(handle: Opaque, address: DevicePointer, bytes: usize, kind: u32, flags: u64) = "cuMemGetHandleForAddressRange" @ 11070 => exported_descriptors::get_range, "keeps memory charged while the exported buffer is open in this process";
            Cuda cuIpcGetMemHandle(handle: *mut IpcHandle, address: DevicePointer) = "cuIpcGetMemHandle" @ 4010 => shared_memory::get_handle, "exports linear memory; it stays charged while a process of the account holds it";
            Cuda cuIpcOpenMemHandle(address: *mut DevicePointer, handle: IpcHandle, flags: u32) = "cuIpcOpenMemHandle" @ 4010 => shared_memory::open_handle, "records memory that is charged to another process";
            Cuda cuIpcOpenMemHandle_v2(address: *mut DevicePointer, handle: IpcHandle, flags: u32) = "cuIpcOpenMemHandle" @ 11000 => shared_memory::open_handle, "records memory that is charged to another process";
            Cuda cuIpcCloseMemHandle(address: DevicePointer) = "cuIpcCloseMemHandle" @ 4010 => shared_memory::close_handle, "drops memory that is charged to another process";
            // Stream-ordered memory.
            Cuda cuMemAllocAsync(address: *mut DevicePointer, bytes: usize, stream: Stream) = "cuMemAllocAsync" @ 11020 => pool::alloc_async, "charges the growth of the pool";
            Cuda cuMemAllocAsync_ptsz(address: *mut DevicePointer, bytes: usize, stream: Stream) = "cuMemAllocAsync" @ 11020 => pool::alloc_async, "charges the growth of the pool";
            Cuda cuMemAllocFromPoolAsync(address: *mut DevicePointer, bytes: usize, pool: Pool, stream: Stream) = "cuMemAllocFromPoolAsync" @ 11020 => pool::alloc_from_pool, "charges the growth of the pool";
            Cuda cuMemAllocFromPoolAsync_ptsz(address: *mut DevicePointer, bytes: usize, pool: Pool, stream: Stream) = "cuMemAllocFromPoolAsync" @ 11020 => pool::alloc_from_pool, "charges the growth of the pool";
            Cuda cuMemFreeAsync(address: DevicePointer, stream: Stream) = "cuMemFreeAsync" @ 11020 => pool::free_async, "uncharges memory that the pool gave back";
            Cuda cuMemFreeAsync_ptsz(address: DevicePointer, stream: Stream) = "cuMemFreeAsync" @ 11020 => pool::free_async, "uncharges memory that the pool gave back";
            Cuda cuMemPoolCreate(pool: *mut Pool, properties: *const PoolProperties) = "cuMemPoolCreate" @ 11020 => pool::create, "records a pool for the GPU of its location";
            Cuda cuMemPoolDestroy(pool: Pool) = "cuMemPoolDestroy" @ 11020 => pool::destroy, "uncharges a pool";
            Cuda cuMemPoolTrimTo(pool: Pool, keep: usize) = "cuMemPoolTrimTo" @ 11020 => pool::trim, "uncharges memory that the pool gave back";
            Cuda cuDeviceGetDefaultMemPool(pool: *mut Pool, device: Device) = "cuDeviceGetDefaultMemPool" @ 11020 => pool::of_device, "records a pool for its GPU";
            Cuda cuMemGetDefaultMemPool(pool: *mut Pool, location: *const MemoryLocation, kind: u32) = "cuMemGetDefaultMemPool" @ 13000 => pool::at_location, "records a pool for the GPU of its location";
            Cuda cuMemGetMemPool(pool: *mut Pool, location: *const MemoryLocation, kind: u32) = "cuMemGetMemPool" @ 13000 => pool::at_location, "records a pool for the GPU of its location";
            // Graphs.
            Cuda cuGraphAddNode(node: *mut Opaque, graph: Opaque, after: Opaque, count: usize, parameters: *mut NodeParameters) = "cuGraphAddNode" @ 12020 => conditional::add_node, "records the bodies of conditional nodes";
            Cuda cuGraphAddNode_v2(node: *mut Opaque, graph: Opaque, after: Opaque, edges: Opaque, count: usize, parameters: *mut NodeParameters) = "cuGraphAddNode" @ 12030 => conditional::add_node_after, "records the bodies of conditional nodes";
            Cuda cuGraphAddNode_v3(node: *mut Opaque, graph: Opaque, after: Opaque, edges: Opaque, count: usize, parameters: *mut NodeParameters) = "cuGraphAddNode" @ 13040 => conditional::add_node_after, "records the bodies of conditional nodes";
            Cuda cuGraphDestroy(graph: Opaque) = "cuGraphDestroy" @ 10000 => conditional::destroy, "forgets the bodies of conditional nodes";
            Cuda cuGraphDestroyNode(node: Opaque) = "cuGraphDestroyNode" @ 10000 => conditional::destroy_node, "forgets the bodies of conditional nodes";
            Cuda cuGraphInstantiate(exec: *mut Opaque, graph: Opaque, node: Opaque, log: Opaque, bytes: usize) = "cuGraphInstantiate" @ 10000 => graph::instantiate, "counts the allocations of the graph's nodes, charges the local memory of its threads";
            Cuda cuGraphInstantiate_v2(exec: *mut Opaque, graph: Opaque, node: Opaque, log: Opaque, bytes: usize) = "cuGraphInstantiate" @ 11000 => graph::instantiate, "counts the allocations of the graph's nodes, charges the local memory of its threads";
            Cuda cuGraphInstantiateWithFlags(exec: *mut Opaque, graph: Opaque, flags: u64) = "cuGraphInstantiateWithFlags" @ 11040 => graph::instantiate_with_flags, "counts the allocations of the graph's nodes, charges the local memory of its threads";
            Cuda cuGraphInstantiateWithParams(exec: *mut Opaque, graph: Opaque, parameters: Opaque) = "cuGraphInstantiateWithParams" @ 12000 => graph::instantiate_with_parameters, "counts the allocations of the graph's nodes, charges the local memory of its threads";
            Cuda cuGraphInstantiateWithParams_ptsz(exec: *mut Opaque, graph: Opaque, parameters: Opaque) = "cuGraphInstantiateWithParams" @ 12000 => graph::instantiate_with_parameters, "counts the allocations of the graph's nodes, charges the local memory of its threads";
            Cuda cuGraphExecUpdate(exec: Opaque, graph: Opaque, node: *mut Opaque, result: *mut u32) = "cuGraphExecUpdate" @ 10020 => kernel_node::update_v1, "charges the local memory of its new kernels' threads";
            Cuda cuGraphExecUpdate_v2(exec: Opaque, graph: Opaque, result: Opaque) = "cuGraphExecUpdate" @ 12000 => kernel_node::update, "charges the local memory of its new kernels' threads";
            Cuda cuGraphExecKernelNodeSetParams(exec: Opaque, node: Opaque, kernel: *const KernelNode) = "cuGraphExecKernelNodeSetParams" @ 10010 => kernel_node::set_v1, "charges the local memory of its new kernels' threads";
            Cuda cuGraphExecKernelNodeSetParams_v2(exec: Opaque, node: Opaque, kernel: *const KernelNode) = "cuGraphExecKernelNodeSetParams" @ 12000 => kernel_node::set, "charges the local memory of its new kernels' threads";
            Cuda cuGraphExecNodeSetParams(exec: Opaque, node: Opaque, parameters: *const NodeParameters) = "cuGraphExecNodeSetParams" @ 12020 => kernel_node::set_node, "charges the local memory of its new kernels' threads";
            Cuda cuGraphExecChildGraphNodeSetParams(exec: Opaque, node: Opaque, graph: Opaque) = "cuGraphExecChildGraphNodeSetParams" @ 11010 => kernel_node::set_child, "charges the local memory of its new kernels' threads";
            Cuda cuGraphUpload(exec: Opaque, stream: Stream) = "cuGraphUpload" @ 11010 => graph::launch, "charges the allocations of the graph's nodes at its first launch";
            Cuda cuGraphUpload_ptsz(exec: Opaque, stream: Stream) = "cuGraphUpload" @ 11010 => graph::launch, "charges the allocations of the graph's nodes at its first launch";
            Cuda cuGraphLaunch(exec: Opaque, stream: Stream) = "cuGraphLaunch" @ 10000 => graph::launch, "charges the allocations of the graph's nodes at its first launch";
            Cuda cuGraphLaunch_ptsz(exec: Opaque, stream: Stream) = "cuGraphLaunch" @ 10000 => graph::launch, "charges the allocations of the graph's nodes at its first launch";
            Cuda cuGraphExecDestroy(exec: Opaque) = "cuGraphExecDestroy" @ 10000 => graph::destroy, "forgets the allocations of the graph's nodes";
            Cuda cuDeviceGraphMemTrim(device: Device) = "cuDeviceGraphMemTrim" @ 11040 => graph::trim, "uncharges memory that the driver kept for graphs";
            // Calls at which pools give memory back by themselves.
            Cuda cuCtxSynchronize() = "cuCtxSynchronize" @ 2000 => pool::context_synchronize, "uncharges memory that pools gave back";
            Cuda cuCtxSynchronize_v2(context: Context) = "cuCtxSynchronize" @ 13000 => pool::synchronize, "uncharges memory that pools gave back";
            Cuda cuStreamSynchronize(stream: Stream) = "cuStreamSynchronize" @ 2000 => pool::synchronize, "uncharges memory that pools gave back";
            Cuda cuStreamSynchronize_ptsz(stream: Stream) = "cuStreamSynchronize" @ 7000 => pool::synchronize, "uncharges memory that pools gave back";
            Cuda cuEventSynchronize(event: Event) = "cuEventSynchronize" @ 2000 => pool::synchronize, "uncharges memory that pools gave back";
            // Contexts.
            Cuda cuCtxCreate(context: *mut Context, flags: u32, device: Device) = "cuCtxCreate" @ 2000 => context::create, "charges the reserve of a context";
            Cuda cuCtxCreate_v2(context: *mut Context, flags: u32, device: Device) = "cuCtxCreate" @ 3020 => context::create, "charges the reserve of a context";
            Cuda cuCtxCreate_v3(context: *mut Context, affinity: Opaque, count: i32, flags: u32, device: Device) = "cuCtxCreate" @ 11040 => context::create_v3, "charges the reserve of a context";
            Cuda cuCtxCreate_v4(context: *mut Context, parameters: Opaque, flags: u32, device: Device) = "cuCtxCreate" @ 12050 => context::create_v4, "charges the reserve of a context";
            Cuda cuCtxDestroy(context: Context) = "cuCtxDestroy" @ 2000 => context::destroy, "uncharges a context and everything in it";
            Cuda cuCtxDestroy_v2(context: Context) = "cuCtxDestroy" @ 4000 => context::destroy, "uncharges a context and everything in it";
            Cuda cuCtxDetach(context: Context) = "cuCtxDetach" @ 2000 => context::detach, "uncharges a context and everything in it when it ends";
            Cuda cuDevicePrimaryCtxRetain(context: *mut Context, device: Device) = "cuDevicePrimaryCtxRetain" @ 7000 => context::retain_primary, "charges the reserve of the primary context";
            Cuda cuDevicePrimaryCtxRelease(device: Device) = "cuDevicePrimaryCtxRelease" @ 7000 => context::release_primary, "uncharges the primary context and everything in it when it ends";
            Cuda cuDevicePrimaryCtxRelease_v2(device: Device) = "cuDevicePrimaryCtxRelease" @ 11000 => context::release_primary, "uncharges the primary context and everything in it when it ends";
            Cuda cuDevicePrimaryCtxReset(device: Device) = "cuDevicePrimaryCtxReset" @ 7000 => context::reset_primary, "uncharges the primary context and everything in it";
            Cuda cuDevicePrimaryCtxReset_v2(device: Device) = "cuDevicePrimaryCtxReset" @ 11000 => context::reset_primary, "uncharges the primary context and everything in it";
            Cuda cuGreenCtxCreate(context: *mut Opaque, description: Opaque, device: Device, flags: u32) = "cuGreenCtxCreate" @ 12040 => context::create_green, "charges the reserve of a context, and of the primary context if it starts too";
            Cuda cuGreenCtxDestroy(context: Opaque) = "cuGreenCtxDestroy" @ 12040 => context::destroy_green, "uncharges a context, and the primary context if it ends too";
            Cuda cuGLCtxCreate(context: *mut Context, flags: u32, device: Device) = "cuGLCtxCreate" @ 2000 => context::create, "charges the reserve of a context";
            Cuda cuGLCtxCreate_v2(context: *mut Context, flags: u32, device: Device) = "cuGLCtxCreate" @ 3020 => context::create, "charges the reserve of a context";
            Cuda cuVDPAUCtxCreate(context: *mut Context, flags: u32, device: Device, display: u32, resolve: Opaque) = "cuVDPAUCtxCreate" @ 3010 => context::create_vdpau, "charges the reserve of a context";
            Cuda cuVDPAUCtxCreate_v2(context: *mut Context, flags: u32, device: Device, display: u32, resolve: Opaque) = "cuVDPAUCtxCreate" @ 3020 => context::create_vdpau, "charges the reserve of a context";
            Cuda cuCtxSetLimit(limit: u32, value: usize) = "cuCtxSetLimit" @ 3010 => context_limit::set, "charges heaps, buffers and stacks above what a context includes";
            // Code.
            Cuda cuModuleLoad(module: *mut Opaque, path: *const c_char) = "cuModuleLoad" @ 2000 => module::load_file, "charges the size that the image states";
            Cuda cuModuleLoadData(module: *mut Opaque, code: Opaque) = "cuModuleLoadData" @ 2000 => module::load, "charges the size that the image states";
            Cuda cuModuleLoadDataEx(module: *mut Opaque, code: Opaque, count: u32, options: Opaque, values: Opaque) = "cuModuleLoadDataEx" @ 2010 => module::load_with, "charges the size that the image states";
            Cuda cuModuleLoadFatBinary(module: *mut Opaque, code: Opaque) = "cuModuleLoadFatBinary" @ 2000 => module::load, "charges the size that the image states";
            Cuda cuModuleUnload(module: Opaque) = "cuModuleUnload" @ 2000 => module::unload, "uncharges a module";
            Cuda cuLibraryLoadData(library: *mut Opaque, code: Opaque, options: Opaque, values: Opaque, count: u32, own_options: Opaque, own_values: Opaque, own_count: u32) = "cuLibraryLoadData" @ 12000 => module::load_library, "charges the size that the image states, in every context";
            Cuda cuLibraryLoadFromFile(library: *mut Opaque, path: *const c_char, options: Opaque, values: Opaque, count: u32, own_options: Opaque, own_values: Opaque, own_count: u32) = "cuLibraryLoadFromFile" @ 12000 => module::load_library_file, "charges the size that the image states, in every context";
            Cuda cuLibraryUnload(library: Opaque) = "cuLibraryUnload" @ 12000 => module::unload_library, "uncharges a library in every context";
            // Launches. Only limited programs go through these hooks.
            Cuda cuLaunchKernel(function: Opaque, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Stream, arguments: Opaque, extra: Opaque) = "cuLaunchKernel" @ 4000 => launch::kernel, "charges the local memory of the kernel's threads at its first launch";
            Cuda cuLaunchKernel_ptsz(function: Opaque, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Stream, arguments: Opaque, extra: Opaque) = "cuLaunchKernel" @ 7000 => launch::kernel, "charges the local memory of the kernel's threads at its first launch";
            Cuda cuLaunchKernelEx(config: *const LaunchConfig, function: Opaque, arguments: Opaque, extra: Opaque) = "cuLaunchKernelEx" @ 11060 => launch::configured, "charges the local memory of the kernel's threads at its first launch";
            Cuda cuLaunchKernelEx_ptsz(config: *const LaunchConfig, function: Opaque, arguments: Opaque, extra: Opaque) = "cuLaunchKernelEx" @ 11060 => launch::configured, "charges the local memory of the kernel's threads at its first launch";
            Cuda cuLaunchCooperativeKernel(function: Opaque, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Stream, arguments: Opaque) = "cuLaunchCooperativeKernel" @ 9000 => launch::cooperative, "charges the local memory of the kernel's threads at its first launch";
            Cuda cuLaunchCooperativeKernel_ptsz(function: Opaque, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Stream, arguments: Opaque) = "cuLaunchCooperativeKernel" @ 9000 => launch::cooperative, "charges the local memory of the kernel's threads at its first launch";
            Cuda cuLaunchCooperativeKernelMultiDevice(launches: *const LaunchParams, count: u32, flags: u32) = "cuLaunchCooperativeKernelMultiDevice" @ 9000 => launch::on_many, "charges the local memory of the kernel's threads at its first launch";
            Cuda cuLaunch(function: Opaque) = "cuLaunch" @ 2000 => launch::once, "charges the local memory of the kernel's threads at its first launch";
            Cuda cuLaunchGrid(function: Opaque, width: i32, height: i32) = "cuLaunchGrid" @ 2000 => launch::grid, "charges the local memory of the kernel's threads at its first launch";
            Cuda cuLaunchGridAsync(function: Opaque, width: i32, height: i32, stream: Stream) = "cuLaunchGridAsync" @ 2000 => launch::grid_async, "charges the local memory of the kernel's threads at its first launch";
            Cuda cuLibraryGetKernel(kernel: *mut Opaque, library: Opaque, name: *const c_char) = "cuLibraryGetKernel" @ 12000 => launch::get_kernel, "records the handle, to query the local memory of the kernel";
            Cuda cuLibraryEnumerateKernels(kernels: *mut Opaque, count: u32, library: Opaque) = "cuLibraryEnumerateKernels" @ 12040 => launch::enumerate, "records the handles, to query the local memory of the kernels";
            // Queries about the card.
            Cuda cuMemGetInfo(free: *mut u32, total: *mut u32) = "cuMemGetInfo" @ 2000 => query::memory_info_v1, "reports the limit as the GPU's memory";
            Cuda cuMemGetInfo_v2(free: *mut usize, total: *mut usize) = "cuMemGetInfo" @ 3020 => query::memory_info, "reports the limit as the GPU's memory";
            Cuda cuDeviceTotalMem(bytes: *mut u32, device: Device) = "cuDeviceTotalMem" @ 2000 => query::total_v1, "reports the limit as the GPU's memory";
            Cuda cuDeviceTotalMem_v2(bytes: *mut usize, device: Device) = "cuDeviceTotalMem" @ 3020 => query::total, "reports the limit as the GPU's memory";
            Nvml nvmlDeviceGetMemoryInfo(device: NvmlDevice, memory: *mut NvmlMemory) = "nvmlDeviceGetMemoryInfo" @ 1 => query::nvml_memory, "reports the limit as the GPU's memory";
            Nvml nvmlDeviceGetMemoryInfo_v2(device: NvmlDevice, memory: *mut NvmlMemoryV2) = "nvmlDeviceGetMemoryInfo" @ 2 => query::nvml_memory_v2, "reports the limit as the GPU's memory";
            Nvml nvmlDeviceGetComputeRunningProcesses(device: NvmlDevice, count: *mut u32, infos: Opaque) = "nvmlDeviceGetComputeRunningProcesses" @ 1 => processes::first, "shows the processes of the allocation";
            Nvml nvmlDeviceGetComputeRunningProcesses_v2(device: NvmlDevice, count: *mut u32, infos: Opaque) = "nvmlDeviceGetComputeRunningProcesses" @ 2 => processes::second, "shows the processes of the allocation";
            Nvml nvmlDeviceGetComputeRunningProcesses_v3(device: NvmlDevice, count: *mut u32, infos: Opaque) = "nvmlDeviceGetComputeRunningProcesses" @ 3 => processes::third, "shows the processes of the allocation";
            Nvml nvmlDeviceGetGraphicsRunningProcesses(device: NvmlDevice, count: *mut u32, infos: Opaque) = "nvmlDeviceGetGraphicsRunningProcesses" @ 1 => processes::first, "shows the processes of the allocation";
            Nvml nvmlDeviceGetGraphicsRunningProcesses_v2(device: NvmlDevice, count: *mut u32, infos: Opaque) = "nvmlDeviceGetGraphicsRunningProcesses" @ 2 => processes::second, "shows the processes of the allocation";
            Nvml nvmlDeviceGetGraphicsRunningProcesses_v3(device: NvmlDevice, count: *mut u32, infos: Opaque) = "nvmlDeviceGetGraphicsRunningProcesses" @ 3 => processes::third, "shows the processes of the allocation";
            Nvml nvmlDeviceGetMPSComputeRunningProcesses(device: NvmlDevice, count: *mut u32, infos: Opaque) = "nvmlDeviceGetMPSComputeRunningProcesses" @ 1 => processes::first, "shows the processes of the allocation";
            Nvml nvmlDeviceGetMPSComputeRunningProcesses_v2(device: NvmlDevice, count: *mut u32, infos: Opaque) = "nvmlDeviceGetMPSComputeRunningProcesses" @ 2 => processes::second, "shows the processes of the allocation";
            Nvml nvmlDeviceGetMPSComputeRunningProcesses_v3(device: NvmlDevice, count: *mut u32, infos: Opaque) = "nvmlDeviceGetMPSComputeRunningProcesses" @ 3 => processes::third, "shows the processes of the allocation";
            Nvml nvmlDeviceGetRunningProcessDetailList(device: NvmlDevice, list: *mut ProcessDetailList) = "nvmlDeviceGetRunningProcessDetailList" @ 1 => processes::details, "shows the processes of the allocation";
            Nvml nvmlDeviceGetProcessUtilization(device: NvmlDevice, samples: Opaque, count: *mut u32, since: u64) = "nvmlDeviceGetProcessUtilization" @ 1 => processes::utilization, "shows the processes of the allocation";
            Nvml nvmlDeviceGetProcessesUtilizationInfo(device: NvmlDevice, list: *mut ProcessUtilization) = "nvmlDeviceGetProcessesUtilizationInfo" @ 1 => processes::utilizations, "shows the processes of the allocation";
            Nvml nvmlDeviceGetAccountingPids(device: NvmlDevice, count: *mut u32, pids: Opaque) = "nvmlDeviceGetAccountingPids" @ 1 => processes::accounted, "shows the processes of the allocation";
            Nvml nvmlDeviceGetAccountingStats(device: NvmlDevice, pid: u32, stats: Opaque) = "nvmlDeviceGetAccountingStats" @ 1 => processes::stats, "shows the processes of the allocation";
            Nvml nvmlDeviceGetAccountingStats_v2(device: NvmlDevice, stats: Opaque) = "nvmlDeviceGetAccountingStats" @ 2 => processes::stats_v2, "shows the processes of the allocation";
            // Lookups by `cuGetProcAddress`.
            Cuda cuGetProcAddress(symbol: *const c_char, function: *mut Opaque, version: i32, flags: u64) = "cuGetProcAddress" @ 11030 => resolve::get_proc_address, "returns the hook of the function that the driver chose";
            Cuda cuGetProcAddress_v2(symbol: *const c_char, function: *mut Opaque, version: i32, flags: u64, status: *mut i32) = "cuGetProcAddress" @ 12000 => resolve::get_proc_address_v2, "returns the hook of the function that the driver chose";
            Cuda cuGetProcAddress_v2_ptsz(symbol: *const c_char, function: *mut Opaque, version: i32, flags: u64, status: *mut i32) = "cuGetProcAddress" @ 12000 => resolve::get_proc_address_v2, "returns the hook of the function that the driver chose";
        }
    };
}
pub(crate) use for_each_hook;

macro_rules! rows {
    ($($library:ident $symbol:ident($($arg:ident: $type:ty),*) = $name:literal @ $version:literal => $family:ident::$hook:ident, $what:literal;)*) => {
        /// Every hooked function, in the order of the table.
        pub const ROWS: &[HookedFunction] = &[$(HookedFunction {
            symbol: terminated(concat!(stringify!($symbol), "\0")),
            exported: HashedSymbol::of(terminated(concat!(stringify!($symbol), "\0"))),
            name: $name,
            version: $version,
            library: DriverLibrary::$library,
            what: $what,
            is_for_limits: matches!(stringify!($family).as_bytes(), b"launch"),
            index: HookIndex::$symbol,
        }),*];

        /// The index of a hooked function in the table.
        #[expect(non_camel_case_types, reason = "the driver's own names")]
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum HookIndex { $($symbol),* }
    };
}

for_each_hook! { rows }

/// The number of hooked functions.
pub(crate) const COUNT: usize = ROWS.len();

/// The index in [`ROWS`] of an exported symbol.
pub(crate) fn find(symbol: &CStr) -> Option<usize> {
    ROWS.iter().position(|row| row.symbol == symbol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_symbol_stands_in_two_rows() {
        for (place, row) in ROWS.iter().enumerate() {
            assert_eq!(find(row.symbol), Some(place), "{:?}", row.symbol);
        }
    }

    #[test]
    fn every_symbol_starts_with_its_name() {
        for row in ROWS {
            let symbol = row.symbol.to_str().expect("names are plain");
            assert!(symbol.starts_with(row.name), "{symbol}");
        }
    }
}
