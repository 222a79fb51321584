//! The functions of the driver that are not hooked, and why.
//!
//! Together with [`ROWS`] this lists every function of CUDA's headers, NVML's functions about memory and processes,
//! and what drivers export beyond their headers. Tests read the headers and the exports, and fail on a name that is
//! in neither list. So somebody decides about each new function.
//!
//! A name stands for all its versions and streams: `cuMemcpyHtoD` also covers `cuMemcpyHtoD_v2_ptds`. A name that has
//! a row is not listed here; each version of a hooked function has a row.
//!
//! # Decision: seen afterwards is not the same as refused
//! No call announces the memory for queues, page tables and lazily loaded code. The agent finds it in NVML and takes it
//! off what is left of the limit. If a call does announce memory and no hook charges it, that is called a gap here,
//! even where the agent sees it in the same way.

use crate::table::{DriverLibrary, ROWS};

/// What an unhooked function means for the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnhookedEffect {
    /// It takes no card memory, or only memory that is already charged.
    TakesNothing,
    /// The driver takes memory for it without saying how much; the agent counts it as overhead.
    Overhead,
    /// A hook could charge it or show less, but this version has none.
    Gap,
}

impl UnhookedEffect {
    /// The effect in words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TakesNothing => "takes nothing",
            Self::Overhead => "overhead",
            Self::Gap => "gap",
        }
    }
}

/// Functions that are unhooked for one reason.
#[derive(Clone, Copy, Debug)]
pub struct UnhookedFunctions {
    /// The library that the functions belong to.
    pub library: DriverLibrary,
    /// What leaving them unhooked means for the limit.
    pub effect: UnhookedEffect,
    /// Why they are unhooked.
    pub reason: &'static str,
    names: &'static str,
}

impl UnhookedFunctions {
    /// The names of the functions, without versions.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.names.split_ascii_whitespace()
    }
}

/// The name that stands for all versions and streams of a function.
#[must_use]
pub fn family(symbol: &str) -> &str {
    let stem = symbol
        .strip_suffix("_ptsz")
        .or_else(|| symbol.strip_suffix("_ptds"))
        .unwrap_or(symbol);
    match stem.rsplit_once("_v") {
        Some((name, version)) if version.parse::<u32>().is_ok() => name,
        Some(_) | None => stem,
    }
}

/// Parts of NVML names that are about memory or processes, or about access to functions without a name.
const NVML_SUBJECTS: [&str; 9] = [
    "Mem",
    "BAR1",
    "Fb",
    "Framebuffer",
    "FieldValues",
    "DeviceGetAttributes",
    "Process",
    "Accounting",
    "ExportTable",
];

/// Whether a symbol of the driver's libraries must be hooked or listed here: all of CUDA's, and those of NVML about
/// memory and processes.
#[must_use]
pub fn is_of_interest(symbol: &str) -> bool {
    symbol.starts_with("cu")
        || symbol.starts_with("nvml")
            && NVML_SUBJECTS.iter().any(|subject| symbol.contains(subject))
}

/// Whether a symbol is hooked or listed here.
#[must_use]
pub fn is_classified(symbol: &str) -> bool {
    let is_hooked = ROWS
        .iter()
        .any(|row| row.symbol.to_bytes() == symbol.as_bytes());
    let mut unhooked = UNHOOKED_FUNCTIONS.iter().flat_map(UnhookedFunctions::names);
    is_hooked || unhooked.any(|name| name == family(symbol))
}

macro_rules! unhooked {
    ($($library:ident $effect:ident $reason:literal: $names:literal;)*) => {
        /// Every unhooked function, by reason.
        pub const UNHOOKED_FUNCTIONS: &[UnhookedFunctions] = &[$(UnhookedFunctions {
            library: DriverLibrary::$library,
            effect: UnhookedEffect::$effect,
            reason: $reason,
            names: $names,
        }),*];
    };
}

unhooked! {
    Cuda TakesNothing "initialises the driver, describes errors, handles logs and core dumps": "
        cuInit cuDriverGetVersion cuGetErrorName cuGetErrorString
        cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory cuLogsRegisterCallback cuLogsUnregisterCallback
        cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal cuCoredumpSetAttribute
        cuCoredumpSetAttributeGlobal cuCoredumpRegisterCompleteCallback
        cuCoredumpRegisterStartCallback cuCoredumpDeregisterCompleteCallback
        cuCoredumpDeregisterStartCallback";
    Cuda TakesNothing "describes a GPU and its features, but not its memory size": "
        cuDeviceGet cuDeviceGetCount cuDeviceGetName cuDeviceGetUuid cuDeviceGetLuid cuDeviceGetAttribute
        cuDeviceGetProperties cuDeviceComputeCapability cuDeviceGetByPCIBusId cuDeviceGetPCIBusId
        cuDeviceCanAccessPeer cuDeviceGetP2PAttribute cuDeviceGetP2PAtomicCapabilities
        cuDeviceGetHostAtomicCapabilities cuDeviceGetExecAffinitySupport cuDeviceGetDevResource
        cuDeviceGetTexture1DLinearMaxWidth cuDeviceGetNvSciSyncAttributes cuDeviceGetFabricClusterUuid
        cuDeviceGetCliqueCount cuDeviceGetCliqueInfo cuDeviceRegisterAsyncNotification
        cuDeviceUnregisterAsyncNotification cuGLGetDevices cuGLInit cuVDPAUGetDevice cuWGLGetDevice";
    Cuda TakesNothing "uses or configures a context that is already charged": "
        cuCtxAttach cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevResource
        cuCtxGetDevice cuCtxGetExecAffinity cuCtxGetFlags cuCtxGetId cuCtxGetLimit
        cuCtxGetSharedMemConfig cuCtxGetStreamPriorityRange cuCtxPopCurrent cuCtxPushCurrent
        cuCtxRecordEvent cuCtxWaitEvent cuCtxResetPersistingL2Cache cuCtxSetCacheConfig cuCtxSetCurrent
        cuCtxSetFlags cuCtxSetSharedMemConfig cuCtxDisablePeerAccess cuDevicePrimaryCtxGetState
        cuDevicePrimaryCtxSetFlags cuCtxFromGreenCtx cuGreenCtxGetDevResource cuGreenCtxGetId
        cuGreenCtxRecordEvent cuGreenCtxWaitEvent cuDevResourceGenerateDesc cuDevSmResourceSplit
        cuDevSmResourceSplitByCount";
    Cuda TakesNothing "host memory": "
        cuMemAllocHost cuMemFreeHost cuMemHostAlloc cuMemHostRegister cuMemHostUnregister
        cuMemHostGetDevicePointer cuMemHostGetFlags";
    Cuda TakesNothing "reserves addresses and sets access, without physical memory": "
        cuMemAddressReserve cuMemAddressFree cuMemSetAccess cuMemGetAccess cuMemGetAllocationGranularity
        cuMemGetAllocationPropertiesFromHandle";
    Cuda TakesNothing "describes existing memory": "
        cuMemGetAddressRange cuMemGetLocationInfo cuMemRangeGetAttribute cuMemRangeGetAttributes
        cuPointerGetAttribute cuPointerGetAttributes cuPointerSetAttribute cuArrayGetDescriptor
        cuArray3DGetDescriptor cuArrayGetMemoryRequirements cuArrayGetPlane cuArrayGetSparseProperties
        cuMipmappedArrayGetLevel cuMipmappedArrayGetMemoryRequirements
        cuMipmappedArrayGetSparseProperties";
    Cuda TakesNothing "reads, shares or configures a pool; the memory that it reserves is charged": "
        cuDeviceGetMemPool cuDeviceSetMemPool cuMemSetMemPool cuMemPoolGetAccess cuMemPoolSetAccess
        cuMemPoolGetAttribute cuMemPoolSetAttribute cuMemPoolExportPointer
        cuMemPoolExportToShareableHandle";
    Cuda TakesNothing "opens a pool of another process, which is charged to that process while it runs": "
        cuMemPoolImportFromShareableHandle cuMemPoolImportPointer";
    Cuda TakesNothing "moves a whole process to host memory and back; it stays charged": "
        cuCheckpointProcessCheckpoint cuCheckpointProcessGetRestoreThreadId cuCheckpointProcessGetState
        cuCheckpointProcessLock cuCheckpointProcessRestore cuCheckpointProcessUnlock
        cuCheckpointOperationComplete";
    Cuda TakesNothing "copies, fills or decompresses existing memory": "
        cuMemcpy cuMemcpyAsync cuMemcpyPeer cuMemcpyPeerAsync cuMemcpyHtoD cuMemcpyHtoDAsync cuMemcpyDtoH
        cuMemcpyDtoHAsync cuMemcpyDtoD cuMemcpyDtoDAsync cuMemcpyDtoA cuMemcpyAtoD cuMemcpyHtoA
        cuMemcpyHtoAAsync cuMemcpyAtoH cuMemcpyAtoHAsync cuMemcpyAtoA cuMemcpy2D cuMemcpy2DUnaligned
        cuMemcpy2DAsync cuMemcpy3D cuMemcpy3DAsync cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpyBatchAsync
        cuMemcpy3DBatchAsync cuMemcpyWithAttributesAsync cuMemcpy3DWithAttributesAsync
        cuFabricCpyBatchAsync cuMemBatchDecompressAsync cuFlushGPUDirectRDMAWrites
        cuMemsetD8 cuMemsetD8Async cuMemsetD16 cuMemsetD16Async cuMemsetD32 cuMemsetD32Async cuMemsetD2D8
        cuMemsetD2D8Async cuMemsetD2D16 cuMemsetD2D16Async cuMemsetD2D32 cuMemsetD2D32Async";
    Cuda TakesNothing "uses existing streams and events": "
        cuStreamAddCallback cuStreamBatchMemOp cuStreamCopyAttributes cuStreamDestroy cuStreamGetAttribute
        cuStreamGetCtx cuStreamGetDevResource cuStreamGetDevice cuStreamGetFlags cuStreamGetGreenCtx
        cuStreamGetId cuStreamGetPriority cuStreamQuery cuStreamSetAttribute cuStreamWaitEvent
        cuStreamWaitValue32 cuStreamWaitValue64 cuStreamWriteValue32 cuStreamWriteValue64
        cuEventDestroy cuEventElapsedTime cuEventQuery cuEventRecord cuEventRecordWithFlags
        cuIpcGetEventHandle cuIpcOpenEventHandle cuEventCreateFromEGLSync cuLaunchHostFunc
        cuImportExternalSemaphore cuDestroyExternalSemaphore cuSignalExternalSemaphoresAsync
        cuWaitExternalSemaphoresAsync";
    Cuda TakesNothing "describes functions, or links code in host memory": "
        cuFuncGetAttribute cuFuncGetModule cuFuncGetName cuFuncGetParamCount cuFuncGetParamInfo
        cuFuncIsLoaded cuFuncSetAttribute cuFuncSetBlockShape cuFuncSetCacheConfig
        cuFuncSetSharedMemConfig cuFuncSetSharedSize cuKernelGetAttribute cuKernelGetLibrary
        cuKernelGetName cuKernelGetParamCount cuKernelGetParamInfo cuKernelSetAttribute
        cuKernelSetCacheConfig cuParamSetSize cuParamSetTexRef cuParamSetf cuParamSeti cuParamSetv
        cuModuleEnumerateFunctions cuModuleGetFunctionCount cuModuleGetLoadingMode cuModuleGetSurfRef
        cuModuleGetTexRef cuLibraryGetKernelCount cuLinkAddData cuLinkAddFile cuLinkComplete cuLinkCreate
        cuLinkDestroy cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters
        cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags
        cuOccupancyMaxPotentialClusterSize";
    Cuda TakesNothing "describes how arrays and memory are accessed": "
        cuTexObjectCreate cuTexObjectDestroy cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc
        cuTexObjectGetTextureDesc cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc
        cuSurfRefGetArray cuSurfRefSetArray cuTexRefCreate cuTexRefDestroy cuTexRefGetAddress
        cuTexRefGetAddressMode cuTexRefGetArray cuTexRefGetBorderColor cuTexRefGetFilterMode
        cuTexRefGetFlags cuTexRefGetFormat cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode
        cuTexRefGetMipmapLevelBias cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray
        cuTexRefSetAddress cuTexRefSetAddress2D cuTexRefSetAddressMode cuTexRefSetArray
        cuTexRefSetBorderColor cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat
        cuTexRefSetMaxAnisotropy cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias
        cuTexRefSetMipmapLevelClamp cuTexRefSetMipmappedArray cuTensorMapEncodeIm2col
        cuTensorMapEncodeIm2colWide cuTensorMapEncodeTiled cuTensorMapReplaceAddress
        cuTensorMapSetAllocationClass";
    Cuda TakesNothing "describes the work of a graph, in host memory": "
        cuGraphCreate cuGraphClone cuGraphAddDependencies
        cuGraphRemoveDependencies cuGraphAddEmptyNode cuGraphAddHostNode cuGraphAddKernelNode
        cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphAddBatchMemOpNode cuGraphAddEventRecordNode
        cuGraphAddEventWaitNode cuGraphAddExternalSemaphoresSignalNode
        cuGraphAddExternalSemaphoresWaitNode cuGraphBatchMemOpNodeGetParams cuGraphBatchMemOpNodeSetParams
        cuGraphChildGraphNodeGetGraph cuGraphConditionalHandleCreate cuGraphDebugDotPrint
        cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent cuGraphEventWaitNodeGetEvent
        cuGraphEventWaitNodeSetEvent cuGraphExternalSemaphoresSignalNodeGetParams
        cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeGetParams
        cuGraphExternalSemaphoresWaitNodeSetParams cuGraphGetEdges cuGraphGetId cuGraphGetNodes
        cuGraphGetRootNodes cuGraphHostNodeGetParams cuGraphHostNodeSetParams
        cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute cuGraphKernelNodeGetParams
        cuGraphKernelNodeSetAttribute cuGraphKernelNodeSetParams cuGraphMemAllocNodeGetParams
        cuGraphMemFreeNodeGetParams cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams
        cuGraphMemsetNodeGetParams cuGraphMemsetNodeSetParams cuGraphNodeFindInClone
        cuGraphNodeGetContainingGraph cuGraphNodeGetDependencies cuGraphNodeGetDependentNodes
        cuGraphNodeGetEnabled cuGraphNodeGetLocalId cuGraphNodeGetParams cuGraphNodeGetToolsId
        cuGraphNodeGetType cuGraphNodeSetEnabled cuGraphNodeSetParams cuGraphRetainUserObject
        cuGraphReleaseUserObject cuUserObjectCreate cuUserObjectRelease cuUserObjectRetain
        cuGraphExecGetFlags cuGraphExecGetId cuGraphExecBatchMemOpNodeSetParams
        cuGraphExecEventRecordNodeSetEvent cuGraphExecEventWaitNodeSetEvent
        cuGraphExecExternalSemaphoresSignalNodeSetParams cuGraphExecExternalSemaphoresWaitNodeSetParams
        cuGraphExecHostNodeSetParams cuGraphExecMemcpyNodeSetParams
        cuGraphExecMemsetNodeSetParams cuStreamIsCapturing cuStreamGetCaptureInfo
        cuStreamUpdateCaptureDependencies cuStreamBeginCaptureToCig cuStreamEndCaptureToCig
        cuThreadExchangeStreamCaptureMode";
    Cuda Overhead "can load code lazily; the variables of its image are already charged": "
        cuModuleGetFunction cuModuleGetGlobal cuLibraryGetGlobal cuLibraryGetManaged cuLibraryGetModule
        cuLibraryGetUnifiedFunction cuKernelGetFunction cuFuncLoad";
    Cuda Overhead "takes a little memory for queues and page tables": "
        cuStreamCreate cuStreamCreateWithPriority cuGreenCtxStreamCreate cuEventCreate
        cuCtxEnablePeerAccess";
    Cuda TakesNothing "manages the members of a multicast object or endpoint, which has no memory of its own": "
        cuMulticastAddDevice cuMulticastGetGranularity cuLogicalEndpointAddDevice cuLogicalEndpointCreate
        cuLogicalEndpointExport cuLogicalEndpointGetLimits cuLogicalEndpointIdRelease
        cuLogicalEndpointIdReserve cuLogicalEndpointImport cuLogicalEndpointQuery";
    Cuda TakesNothing "builds or describes graphs, whose memory is charged at launch": "
        cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuGraphAddChildGraphNode
        cuDeviceGetGraphMemAttribute cuDeviceSetGraphMemAttribute cuStreamBeginCapture
        cuStreamBeginCaptureToGraph cuStreamBeginRecaptureToGraph cuStreamEndCapture";
    Cuda Gap "can move pages of ordinary host memory to a GPU, as an access does; managed memory is charged": "
        cuMemAdvise cuMemPrefetchAsync cuMemPrefetchBatchAsync cuMemDiscardBatchAsync
        cuMemDiscardAndPrefetchBatchAsync cuStreamAttachMemAsync";
    Cuda Overhead "maps memory that another interface allocated; takes only page tables, and the agent counts the allocation": "
        cuImportExternalMemory cuDestroyExternalMemory cuExternalMemoryGetMappedBuffer
        cuExternalMemoryGetMappedMipmappedArray cuGraphicsMapResources
        cuGraphicsResourceGetMappedMipmappedArray cuGraphicsResourceGetMappedPointer
        cuGraphicsResourceGetMappedEglFrame cuGraphicsResourceSetMapFlags
        cuGraphicsSubResourceGetMappedArray cuGraphicsUnmapResources cuGraphicsUnregisterResource
        cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage cuGraphicsEGLRegisterImage
        cuGraphicsVDPAURegisterOutputSurface cuGraphicsVDPAURegisterVideoSurface cuGLMapBufferObject
        cuGLMapBufferObjectAsync cuGLRegisterBufferObject cuGLSetBufferObjectMapFlags
        cuGLUnmapBufferObject cuGLUnmapBufferObjectAsync cuGLUnregisterBufferObject
        cuEGLStreamConsumerAcquireFrame cuEGLStreamConsumerConnect cuEGLStreamConsumerConnectWithFlags
        cuEGLStreamConsumerDisconnect cuEGLStreamConsumerReleaseFrame cuEGLStreamProducerConnect
        cuEGLStreamProducerDisconnect cuEGLStreamProducerPresentFrame cuEGLStreamProducerReturnFrame";
    Cuda Gap "returns private function tables, which are not hooked": "
        cuGetExportTable";
    Cuda TakesNothing "exported without a declaration; by its name it initialises an interface or describes existing memory": "
        cuEGLApiInit cuMemGetAttribute";
    Cuda Overhead "turns a profiler on and off; the agent counts its buffers": "
        cuProfilerInitialize cuProfilerStart cuProfilerStop";
    Cuda Overhead "debugger interface of the driver; the agent counts its memory": "
        cudbgApiAttach cudbgApiClientPid cudbgApiClientRevision cudbgApiDetach cudbgApiInit
        cudbgAttachHandlerAvailable cudbgDebuggerCapabilities cudbgDebuggerInitialized
        cudbgDetachSuspendedDevicesMask cudbgEnableIntegratedMemcheck cudbgEnableLaunchBlocking
        cudbgEnablePreemptionDebugging cudbgGetAPI cudbgGetAPIVersion cudbgInjectionPath cudbgIpcFlag
        cudbgMain cudbgReportDriverApiError cudbgReportDriverApiErrorFlags
        cudbgReportDriverInternalError cudbgReportedDriverApiErrorCode
        cudbgReportedDriverApiErrorFuncNameAddr cudbgReportedDriverApiErrorFuncNameSize
        cudbgReportedDriverInternalErrorCode cudbgResumeForAttachDetach cudbgRpcEnabled cudbgSessionId
        cudbgUseExternalDebugger";
    Nvml Gap "returns private function tables, which are not hooked; nvidia-smi reads the GPU's processes there": "
        nvmlInternalGetExportTable";
    Nvml TakesNothing "clocks, errors, counters and bus width of the memory; process names": "
        nvmlDeviceGetMemClkMinMaxVfOffset nvmlDeviceGetMemClkVfOffset nvmlDeviceGetMemoryAffinity
        nvmlDeviceGetMemoryBusWidth nvmlDeviceGetMemoryErrorCounter nvmlDeviceGetSupportedMemoryClocks
        nvmlDeviceGetUnrepairableMemoryFlag nvmlDeviceGetFieldValues nvmlDeviceClearFieldValues
        nvmlSystemGetProcessName";
    Nvml TakesNothing "settings of the whole GPU and the driver's own limits, which only root can change": "
        nvmlDeviceGetMemoryLimits nvmlDeviceSetMemoryLimits nvmlDeviceSetAccountingMode
        nvmlDeviceSetConfComputeUnprotectedMemSize nvmlDeviceSetMemClkVfOffset
        nvmlDeviceSetMemoryLockedClocks nvmlDeviceResetMemoryLockedClocks";
    Nvml TakesNothing "accounting settings of processes, which only root can change": "
        nvmlDeviceGetAccountingBufferSize nvmlDeviceGetAccountingMode nvmlDeviceClearAccountingPids
        nvmlVgpuInstanceClearAccountingPids nvmlVgpuInstanceGetAccountingMode";
    Nvml Gap "shows the processes of virtual machines, on hosts that run them": "
        nvmlDeviceGetVgpuProcessUtilization nvmlDeviceGetVgpuProcessesUtilizationInfo
        nvmlVgpuInstanceGetAccountingPids nvmlVgpuInstanceGetAccountingStats";
    Nvml Gap "shows the memory of the whole GPU, of its BAR1 window or of its partitions": "
        nvmlDeviceGetBAR1MemoryInfo nvmlDeviceGetAttributes nvmlDeviceGetConfComputeMemSizeInfo
        nvmlDeviceGetConfComputeProtectedMemoryUsage nvmlVgpuInstanceGetFbUsage nvmlVgpuTypeGetBAR1Info
        nvmlVgpuTypeGetFbReservation nvmlVgpuTypeGetFramebufferSize";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_has_no_version_and_no_stream() {
        assert_eq!(family("cuMemcpyHtoD_v2_ptds"), "cuMemcpyHtoD");
        assert_eq!(family("cuMemPrefetchAsync_ptsz"), "cuMemPrefetchAsync");
        assert_eq!(
            family("nvmlDeviceGetMemoryInfo_v2"),
            "nvmlDeviceGetMemoryInfo"
        );
        assert_eq!(family("cuInit"), "cuInit");
    }
}
