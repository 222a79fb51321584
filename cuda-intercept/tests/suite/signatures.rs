//! Every hook has the signature of the driver's function: the same number of arguments, each of the same size. A
//! mismatch does not compile.
//!
//! The driver's side comes from bindings that were generated from its headers. They lack the first version of
//! functions that have a second one, and the per-thread stream variants. Those are written out below. The last test
//! checks that every row of the table is compared.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::size_of;

use apportion_intercept::entry_points::entry;
use apportion_intercept::{
    AllocationNode, ArrayMap, KernelNode, LaunchConfig, NvmlMemory, NvmlMemoryV2,
    ProcessDetailList, ProcessUtilization, ROWS,
};
use cudarc::driver::sys;
use nvml_wrapper_sys::bindings::{nvmlProcessDetailList_t, nvmlProcessesUtilizationInfo_t};

/// The sizes of the result and of the arguments.
trait SignatureSizes {
    const SIZES: &'static [usize];
}

macro_rules! signatures {
    ($(($($arg:ident),*))*) => {$(
        impl<R $(, $arg)*> SignatureSizes for unsafe extern "C" fn($($arg),*) -> R {
            const SIZES: &'static [usize] = &[size_of::<R>() $(, size_of::<$arg>())*];
        }

        impl<R $(, $arg)*> SignatureSizes for unsafe fn($($arg),*) -> R {
            const SIZES: &'static [usize] = &[size_of::<R>() $(, size_of::<$arg>())*];
        }
    )*};
}

signatures! {
    () (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E)
    (A, B, C, D, E, F) (A, B, C, D, E, F, G) (A, B, C, D, E, F, G, H)
    (A, B, C, D, E, F, G, H, I, J) (A, B, C, D, E, F, G, H, I, J, K)
}

const fn same(one: &[usize], other: &[usize]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut place = 0;
    while place < one.len() {
        if one[place] != other[place] {
            return false;
        }
        place += 1;
    }
    true
}

/// Does not compile if the signatures differ.
fn compare<A: SignatureSizes, B: SignatureSizes>(_: A, _: B) {
    const { assert!(same(A::SIZES, B::SIZES), "the hook has another signature") }
}

macro_rules! any {
    ($arg:ident) => {
        _
    };
}

/// Compares hooks with the functions in the bindings.
macro_rules! compare {
    ($($hook:ident = $real:ident($($arg:ident),*);)*) => {
        fn compare_with_the_bindings() {
            $(compare(
                entry::$hook as unsafe extern "C" fn($(any!($arg)),*) -> _,
                sys::$real as unsafe fn($(any!($arg)),*) -> _,
            );)*
        }

        const BOUND: &[&str] = &[$(stringify!($hook)),*];
    };
}

/// Compares hooks with signatures that are written out.
macro_rules! written {
    ($($hook:ident($($arg:ident: $type:ty),*);)*) => {
        fn compare_with_the_written() {
            $({
                unsafe extern "C" fn real($(_: $type),*) -> c_int { 0 }
                compare(
                    entry::$hook as unsafe extern "C" fn($(any!($arg)),*) -> _,
                    real as unsafe extern "C" fn($($type),*) -> c_int,
                );
            })*
        }

        const WRITTEN: &[&str] = &[$(stringify!($hook)),*];
    };
}

compare! {
    cuMemAlloc_v2 = cuMemAlloc_v2(a, b);
    cuMemAllocPitch_v2 = cuMemAllocPitch_v2(a, b, c, d, e);
    cuMemAllocManaged = cuMemAllocManaged(a, b, c);
    cuMemFree_v2 = cuMemFree_v2(a);
    cuArrayCreate_v2 = cuArrayCreate_v2(a, b);
    cuArray3DCreate_v2 = cuArray3DCreate_v2(a, b);
    cuArrayDestroy = cuArrayDestroy(a);
    cuMipmappedArrayCreate = cuMipmappedArrayCreate(a, b, c);
    cuMipmappedArrayDestroy = cuMipmappedArrayDestroy(a);
    cuMemCreate = cuMemCreate(a, b, c, d);
    cuMemRelease = cuMemRelease(a);
    cuMemMap = cuMemMap(a, b, c, d, e);
    cuMemUnmap = cuMemUnmap(a, b);
    cuMemRetainAllocationHandle = cuMemRetainAllocationHandle(a, b);
    cuMemMapArrayAsync = cuMemMapArrayAsync(a, b, c);
    cuMemMapArrayAsync_ptsz = cuMemMapArrayAsync(a, b, c);
    cuMemGetHandleForAddressRange = cuMemGetHandleForAddressRange(a, b, c, d, e);
    cuMulticastCreate = cuMulticastCreate(a, b);
    cuMulticastBindMem = cuMulticastBindMem(a, b, c, d, e, f);
    cuMulticastBindAddr = cuMulticastBindAddr(a, b, c, d, e);
    cuMulticastUnbind = cuMulticastUnbind(a, b, c, d);
    cuMemImportFromShareableHandle = cuMemImportFromShareableHandle(a, b, c);
    cuMemExportToShareableHandle = cuMemExportToShareableHandle(a, b, c, d);
    cuIpcGetMemHandle = cuIpcGetMemHandle(a, b);
    cuIpcOpenMemHandle_v2 = cuIpcOpenMemHandle_v2(a, b, c);
    cuIpcCloseMemHandle = cuIpcCloseMemHandle(a);
    cuMemAllocAsync = cuMemAllocAsync(a, b, c);
    cuMemAllocAsync_ptsz = cuMemAllocAsync(a, b, c);
    cuMemAllocFromPoolAsync = cuMemAllocFromPoolAsync(a, b, c, d);
    cuMemAllocFromPoolAsync_ptsz = cuMemAllocFromPoolAsync(a, b, c, d);
    cuMemFreeAsync = cuMemFreeAsync(a, b);
    cuMemFreeAsync_ptsz = cuMemFreeAsync(a, b);
    cuMemPoolCreate = cuMemPoolCreate(a, b);
    cuMemPoolDestroy = cuMemPoolDestroy(a);
    cuMemPoolTrimTo = cuMemPoolTrimTo(a, b);
    cuDeviceGetDefaultMemPool = cuDeviceGetDefaultMemPool(a, b);
    cuMemGetDefaultMemPool = cuMemGetDefaultMemPool(a, b, c);
    cuMemGetMemPool = cuMemGetMemPool(a, b, c);
    cuStreamSynchronize = cuStreamSynchronize(a);
    cuStreamSynchronize_ptsz = cuStreamSynchronize(a);
    cuEventSynchronize = cuEventSynchronize(a);
    cuCtxSynchronize = cuCtxSynchronize();
    cuCtxSynchronize_v2 = cuCtxSynchronize_v2(a);
    cuCtxCreate_v4 = cuCtxCreate_v4(a, b, c, d);
    cuCtxDestroy_v2 = cuCtxDestroy_v2(a);
    cuDevicePrimaryCtxRetain = cuDevicePrimaryCtxRetain(a, b);
    cuDevicePrimaryCtxRelease_v2 = cuDevicePrimaryCtxRelease_v2(a);
    cuDevicePrimaryCtxReset_v2 = cuDevicePrimaryCtxReset_v2(a);
    cuGraphDestroy = cuGraphDestroy(a);
    cuGraphDestroyNode = cuGraphDestroyNode(a);
    cuGraphInstantiateWithFlags = cuGraphInstantiateWithFlags(a, b, c);
    cuGraphInstantiateWithParams = cuGraphInstantiateWithParams(a, b, c);
    cuGraphInstantiateWithParams_ptsz = cuGraphInstantiateWithParams(a, b, c);
    cuGraphExecUpdate_v2 = cuGraphExecUpdate_v2(a, b, c);
    cuGraphExecKernelNodeSetParams_v2 = cuGraphExecKernelNodeSetParams_v2(a, b, c);
    cuGraphExecNodeSetParams = cuGraphExecNodeSetParams(a, b, c);
    cuGraphExecChildGraphNodeSetParams = cuGraphExecChildGraphNodeSetParams(a, b, c);
    cuLaunchKernel = cuLaunchKernel(a, b, c, d, e, f, g, h, i, j, k);
    cuLaunchKernel_ptsz = cuLaunchKernel(a, b, c, d, e, f, g, h, i, j, k);
    cuLaunchKernelEx = cuLaunchKernelEx(a, b, c, d);
    cuLaunchKernelEx_ptsz = cuLaunchKernelEx(a, b, c, d);
    cuLaunchCooperativeKernel = cuLaunchCooperativeKernel(a, b, c, d, e, f, g, h, i, j);
    cuLaunchCooperativeKernel_ptsz = cuLaunchCooperativeKernel(a, b, c, d, e, f, g, h, i, j);
    cuLibraryGetKernel = cuLibraryGetKernel(a, b, c);
    cuLibraryEnumerateKernels = cuLibraryEnumerateKernels(a, b, c);
    cuGraphUpload = cuGraphUpload(a, b);
    cuGraphUpload_ptsz = cuGraphUpload(a, b);
    cuGraphLaunch = cuGraphLaunch(a, b);
    cuGraphLaunch_ptsz = cuGraphLaunch(a, b);
    cuGraphExecDestroy = cuGraphExecDestroy(a);
    cuDeviceGraphMemTrim = cuDeviceGraphMemTrim(a);
    cuGreenCtxCreate = cuGreenCtxCreate(a, b, c, d);
    cuGreenCtxDestroy = cuGreenCtxDestroy(a);
    cuCtxSetLimit = cuCtxSetLimit(a, b);
    cuModuleLoad = cuModuleLoad(a, b);
    cuModuleLoadData = cuModuleLoadData(a, b);
    cuModuleLoadDataEx = cuModuleLoadDataEx(a, b, c, d, e);
    cuModuleLoadFatBinary = cuModuleLoadFatBinary(a, b);
    cuModuleUnload = cuModuleUnload(a);
    cuLibraryLoadData = cuLibraryLoadData(a, b, c, d, e, f, g, h);
    cuLibraryLoadFromFile = cuLibraryLoadFromFile(a, b, c, d, e, f, g, h);
    cuLibraryUnload = cuLibraryUnload(a);
    cuMemGetInfo_v2 = cuMemGetInfo_v2(a, b);
    cuDeviceTotalMem_v2 = cuDeviceTotalMem_v2(a, b);
    cuGetProcAddress_v2 = cuGetProcAddress_v2(a, b, c, d, e);
    cuGetProcAddress_v2_ptsz = cuGetProcAddress_v2(a, b, c, d, e);
}

written! {
    cuMemAlloc(a: *mut c_uint, b: c_uint);
    cuMemAllocPitch(a: *mut c_uint, b: *mut c_uint, c: c_uint, d: c_uint, e: c_uint);
    cuMemFree(a: c_uint);
    cuArrayCreate(a: *mut *mut c_void, b: *const c_void);
    cuArray3DCreate(a: *mut *mut c_void, b: *const c_void);
    cuIpcOpenMemHandle(a: *mut u64, b: sys::CUipcMemHandle, c: c_uint);
    cuMulticastBindMem_v2(a: u64, b: c_int, c: usize, d: u64, e: usize, f: usize, g: u64);
    cuMulticastBindAddr_v2(a: u64, b: c_int, c: usize, d: u64, e: usize, f: u64);
    cuLogicalEndpointBindMem(a: c_uint, b: c_int, c: u64, d: u64, e: u64, f: u64, g: u64);
    cuLogicalEndpointBindAddr(a: c_uint, b: c_int, c: u64, d: *mut c_void, e: u64, f: u64);
    cuLogicalEndpointUnbind(a: c_uint, b: c_int, c: u64, d: u64);
    cuLogicalEndpointDestroy(a: c_uint);
    cuGraphAddNode(a: *mut *mut c_void, b: *mut c_void, c: *const c_void, d: usize, e: *mut c_void);
    cuGraphAddNode_v2(a: *mut *mut c_void, b: *mut c_void, c: *const c_void, d: *const c_void, e: usize, f: *mut c_void);
    cuGraphAddNode_v3(a: *mut *mut c_void, b: *mut c_void, c: *const c_void, d: *const c_void, e: usize, f: *mut c_void);
    cuCtxCreate(a: *mut *mut c_void, b: c_uint, c: c_int);
    cuCtxCreate_v2(a: *mut *mut c_void, b: c_uint, c: c_int);
    cuCtxCreate_v3(a: *mut *mut c_void, b: *mut c_void, c: c_int, d: c_uint, e: c_int);
    cuCtxDestroy(a: *mut c_void);
    cuCtxDetach(a: *mut c_void);
    cuDevicePrimaryCtxRelease(a: c_int);
    cuDevicePrimaryCtxReset(a: c_int);
    cuGraphInstantiate(a: *mut *mut c_void, b: *mut c_void, c: *mut *mut c_void, d: *mut c_char, e: usize);
    cuGraphInstantiate_v2(a: *mut *mut c_void, b: *mut c_void, c: *mut *mut c_void, d: *mut c_char, e: usize);
    cuGraphExecUpdate(a: *mut c_void, b: *mut c_void, c: *mut *mut c_void, d: *mut c_uint);
    cuGraphExecKernelNodeSetParams(a: *mut c_void, b: *mut c_void, c: *const c_void);
    cuLaunchCooperativeKernelMultiDevice(a: *mut c_void, b: c_uint, c: c_uint);
    cuLaunch(a: *mut c_void);
    cuLaunchGrid(a: *mut c_void, b: c_int, c: c_int);
    cuLaunchGridAsync(a: *mut c_void, b: c_int, c: c_int, d: *mut c_void);
    cuGLCtxCreate(a: *mut *mut c_void, b: c_uint, c: c_int);
    cuGLCtxCreate_v2(a: *mut *mut c_void, b: c_uint, c: c_int);
    cuVDPAUCtxCreate(a: *mut *mut c_void, b: c_uint, c: c_int, d: c_uint, e: *const c_void);
    cuVDPAUCtxCreate_v2(a: *mut *mut c_void, b: c_uint, c: c_int, d: c_uint, e: *const c_void);
    cuMemGetInfo(a: *mut c_uint, b: *mut c_uint);
    cuDeviceTotalMem(a: *mut c_uint, b: c_int);
    cuGetProcAddress(a: *const c_char, b: *mut *mut c_void, c: c_int, d: u64);
    nvmlDeviceGetMemoryInfo(a: *mut c_void, b: *mut nvml_wrapper_sys::bindings::nvmlMemory_t);
    nvmlDeviceGetMemoryInfo_v2(a: *mut c_void, b: *mut nvml_wrapper_sys::bindings::nvmlMemory_v2_t);
    nvmlDeviceGetComputeRunningProcesses(a: *mut c_void, b: *mut c_uint, c: *mut c_void);
    nvmlDeviceGetComputeRunningProcesses_v2(a: *mut c_void, b: *mut c_uint, c: *mut c_void);
    nvmlDeviceGetComputeRunningProcesses_v3(a: *mut c_void, b: *mut c_uint, c: *mut c_void);
    nvmlDeviceGetGraphicsRunningProcesses(a: *mut c_void, b: *mut c_uint, c: *mut c_void);
    nvmlDeviceGetGraphicsRunningProcesses_v2(a: *mut c_void, b: *mut c_uint, c: *mut c_void);
    nvmlDeviceGetGraphicsRunningProcesses_v3(a: *mut c_void, b: *mut c_uint, c: *mut c_void);
    nvmlDeviceGetMPSComputeRunningProcesses(a: *mut c_void, b: *mut c_uint, c: *mut c_void);
    nvmlDeviceGetMPSComputeRunningProcesses_v2(a: *mut c_void, b: *mut c_uint, c: *mut c_void);
    nvmlDeviceGetMPSComputeRunningProcesses_v3(a: *mut c_void, b: *mut c_uint, c: *mut c_void);
    nvmlDeviceGetRunningProcessDetailList(a: *mut c_void, b: *mut nvmlProcessDetailList_t);
    nvmlDeviceGetProcessUtilization(a: *mut c_void, b: *mut c_void, c: *mut c_uint, d: u64);
    nvmlDeviceGetProcessesUtilizationInfo(a: *mut c_void, b: *mut nvmlProcessesUtilizationInfo_t);
    nvmlDeviceGetAccountingPids(a: *mut c_void, b: *mut c_uint, c: *mut c_uint);
    nvmlDeviceGetAccountingStats(a: *mut c_void, b: c_uint, c: *mut c_void);
    nvmlDeviceGetAccountingStats_v2(a: *mut c_void, b: *mut c_void);
}

#[test]
fn every_hook_has_the_signature_of_the_function_it_stands_for() {
    compare_with_the_bindings();
    compare_with_the_written();
    for row in ROWS {
        let symbol = row.symbol.to_str().expect("names are plain");
        let compared = BOUND.contains(&symbol) || WRITTEN.contains(&symbol);
        assert!(compared, "{symbol} is compared with nothing");
    }
}

#[test]
fn structures_that_a_hook_writes_have_the_driver_s_size() {
    use nvml_wrapper_sys::bindings::{nvmlMemory_t, nvmlMemory_v2_t};
    assert_eq!(
        size_of::<AllocationNode>(),
        size_of::<sys::CUDA_MEM_ALLOC_NODE_PARAMS>()
    );
    assert_eq!(
        size_of::<KernelNode>(),
        size_of::<sys::CUDA_KERNEL_NODE_PARAMS>()
    );
    assert_eq!(size_of::<ArrayMap>(), size_of::<sys::CUarrayMapInfo>());
    assert_eq!(size_of::<LaunchConfig>(), size_of::<sys::CUlaunchConfig>());
    assert_eq!(size_of::<NvmlMemory>(), size_of::<nvmlMemory_t>());
    assert_eq!(size_of::<NvmlMemoryV2>(), size_of::<nvmlMemory_v2_t>());
    assert_eq!(
        size_of::<ProcessDetailList>(),
        size_of::<nvmlProcessDetailList_t>()
    );
    assert_eq!(
        size_of::<ProcessUtilization>(),
        size_of::<nvmlProcessesUtilizationInfo_t>()
    );
}
