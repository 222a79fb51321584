//! The other half of the table: every function of the driver that is not hooked, and why.
//!
//! Together with [`ROWS`] it names every function of CUDA's headers, what NVML's
//! header has about memory and processes, and what drivers export beyond their headers. Tests read the
//! headers and the exports and fail on a name that stands in neither, so that a new function is thought
//! about before it goes past the limit.
//!
//! A name stands for all its versions and streams: `cuMemcpyHtoD` for `cuMemcpyHtoD_v2_ptds` too. No name
//! with a row stands here: of a hooked function each version is a row.
//!
//! # Decision: seen afterwards is not the same as refused
//! Some memory is not announced by any call: code, queues, page tables. The agent finds it in NVML and takes it
//! off what is left of the limit. What a call does announce and no hook charges is called a gap here, also
//! where the agent sees it in the same way.

use crate::table::{Library, ROWS};

/// What being left alone means for the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It takes no memory of a card, or none that is not charged already.
    TakesNothing,
    /// The driver takes memory for it without saying how much; the agent counts it as overhead.
    Overhead,
    /// A hook could charge it, or show less, and none does in this version.
    Gap,
}

impl Standing {
    /// In words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TakesNothing => "takes nothing",
            Self::Overhead => "overhead",
            Self::Gap => "gap",
        }
    }
}

/// Functions that are left alone for one reason.
#[derive(Clone, Copy, Debug)]
pub struct LeftAlone {
    /// The library that they belong to.
    pub library: Library,
    /// What that means for the limit.
    pub standing: Standing,
    /// Why they are.
    pub reason: &'static str,
    names: &'static str,
}

impl LeftAlone {
    /// The functions, without versions.
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

/// What a name of NVML contains if it is about memory or processes, or about a way to functions that have no name.
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

/// Whether a symbol of the driver's libraries must be hooked or left alone for a reason: all of CUDA's must, and what
/// NVML has about memory and processes.
#[must_use]
pub fn is_of_interest(symbol: &str) -> bool {
    symbol.starts_with("cu")
        || symbol.starts_with("nvml")
            && NVML_SUBJECTS.iter().any(|subject| symbol.contains(subject))
}

/// Whether a symbol is hooked, or left alone for a reason.
#[must_use]
pub fn is_classified(symbol: &str) -> bool {
    let is_hooked = ROWS
        .iter()
        .any(|row| row.symbol.to_bytes() == symbol.as_bytes());
    let mut left_alone = LEFT_ALONE.iter().flat_map(LeftAlone::names);
    is_hooked || left_alone.any(|name| name == family(symbol))
}

macro_rules! left_alone {
    ($($library:ident $standing:ident $reason:literal: $names:literal;)*) => {
        /// Every function that is left alone, by reason.
        pub const LEFT_ALONE: &[LeftAlone] = &[$(LeftAlone {
            library: Library::$library,
            standing: Standing::$standing,
            reason: $reason,
            names: $names,
        }),*];
    };
}

left_alone! {
    Cuda TakesNothing "starts the driver, names errors, keeps logs and core dumps": "
        cuInit cuDriverGetVersion cuGetErrorName cuGetErrorString
        cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory cuLogsRegisterCallback cuLogsUnregisterCallback
        cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal cuCoredumpSetAttribute
        cuCoredumpSetAttributeGlobal cuCoredumpRegisterCompleteCallback
        cuCoredumpRegisterStartCallback cuCoredumpDeregisterCompleteCallback
        cuCoredumpDeregisterStartCallback";
    Cuda TakesNothing "says what a card is and can do, but not how much memory it has": "
        cuDeviceGet cuDeviceGetCount cuDeviceGetName cuDeviceGetUuid cuDeviceGetLuid cuDeviceGetAttribute
        cuDeviceGetProperties cuDeviceComputeCapability cuDeviceGetByPCIBusId cuDeviceGetPCIBusId
        cuDeviceCanAccessPeer cuDeviceGetP2PAttribute cuDeviceGetP2PAtomicCapabilities
        cuDeviceGetHostAtomicCapabilities cuDeviceGetExecAffinitySupport cuDeviceGetDevResource
        cuDeviceGetTexture1DLinearMaxWidth cuDeviceGetNvSciSyncAttributes cuDeviceGetFabricClusterUuid
        cuDeviceGetCliqueCount cuDeviceGetCliqueInfo cuDeviceRegisterAsyncNotification
        cuDeviceUnregisterAsyncNotification cuGLGetDevices cuGLInit cuVDPAUGetDevice cuWGLGetDevice";
    Cuda TakesNothing "uses or adjusts a context that is charged already": "
        cuCtxAttach cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevResource
        cuCtxGetDevice cuCtxGetExecAffinity cuCtxGetFlags cuCtxGetId cuCtxGetLimit
        cuCtxGetSharedMemConfig cuCtxGetStreamPriorityRange cuCtxPopCurrent cuCtxPushCurrent
        cuCtxRecordEvent cuCtxWaitEvent cuCtxResetPersistingL2Cache cuCtxSetCacheConfig cuCtxSetCurrent
        cuCtxSetFlags cuCtxSetSharedMemConfig cuCtxDisablePeerAccess cuDevicePrimaryCtxGetState
        cuDevicePrimaryCtxSetFlags cuCtxFromGreenCtx cuGreenCtxGetDevResource cuGreenCtxGetId
        cuGreenCtxRecordEvent cuGreenCtxWaitEvent cuDevResourceGenerateDesc cuDevSmResourceSplit
        cuDevSmResourceSplitByCount";
    Cuda TakesNothing "memory of the host": "
        cuMemAllocHost cuMemFreeHost cuMemHostAlloc cuMemHostRegister cuMemHostUnregister
        cuMemHostGetDevicePointer cuMemHostGetFlags";
    Cuda TakesNothing "reserves addresses and grants access, without memory behind them": "
        cuMemAddressReserve cuMemAddressFree cuMemSetAccess cuMemGetAccess cuMemGetAllocationGranularity
        cuMemGetAllocationPropertiesFromHandle";
    Cuda TakesNothing "describes memory that is there": "
        cuMemGetAddressRange cuMemGetLocationInfo cuMemRangeGetAttribute cuMemRangeGetAttributes
        cuPointerGetAttribute cuPointerGetAttributes cuPointerSetAttribute cuArrayGetDescriptor
        cuArray3DGetDescriptor cuArrayGetMemoryRequirements cuArrayGetPlane cuArrayGetSparseProperties
        cuMipmappedArrayGetLevel cuMipmappedArrayGetMemoryRequirements
        cuMipmappedArrayGetSparseProperties";
    Cuda TakesNothing "names, shares or tunes a pool, which is charged for what it reserves": "
        cuDeviceGetMemPool cuDeviceSetMemPool cuMemSetMemPool cuMemPoolGetAccess cuMemPoolSetAccess
        cuMemPoolGetAttribute cuMemPoolSetAttribute cuMemPoolExportPointer
        cuMemPoolExportToShareableHandle";
    Cuda TakesNothing "opens a pool of another process, which that process pays for while it lives": "
        cuMemPoolImportFromShareableHandle cuMemPoolImportPointer";
    Cuda TakesNothing "moves a whole process to the host and back; it stays charged all the while": "
        cuCheckpointProcessCheckpoint cuCheckpointProcessGetRestoreThreadId cuCheckpointProcessGetState
        cuCheckpointProcessLock cuCheckpointProcessRestore cuCheckpointProcessUnlock
        cuCheckpointOperationComplete";
    Cuda TakesNothing "copies, fills and unpacks memory that is there": "
        cuMemcpy cuMemcpyAsync cuMemcpyPeer cuMemcpyPeerAsync cuMemcpyHtoD cuMemcpyHtoDAsync cuMemcpyDtoH
        cuMemcpyDtoHAsync cuMemcpyDtoD cuMemcpyDtoDAsync cuMemcpyDtoA cuMemcpyAtoD cuMemcpyHtoA
        cuMemcpyHtoAAsync cuMemcpyAtoH cuMemcpyAtoHAsync cuMemcpyAtoA cuMemcpy2D cuMemcpy2DUnaligned
        cuMemcpy2DAsync cuMemcpy3D cuMemcpy3DAsync cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpyBatchAsync
        cuMemcpy3DBatchAsync cuMemcpyWithAttributesAsync cuMemcpy3DWithAttributesAsync
        cuFabricCpyBatchAsync cuMemBatchDecompressAsync cuFlushGPUDirectRDMAWrites
        cuMemsetD8 cuMemsetD8Async cuMemsetD16 cuMemsetD16Async cuMemsetD32 cuMemsetD32Async cuMemsetD2D8
        cuMemsetD2D8Async cuMemsetD2D16 cuMemsetD2D16Async cuMemsetD2D32 cuMemsetD2D32Async";
    Cuda TakesNothing "orders and describes streams and events that are there": "
        cuStreamAddCallback cuStreamBatchMemOp cuStreamCopyAttributes cuStreamDestroy cuStreamGetAttribute
        cuStreamGetCtx cuStreamGetDevResource cuStreamGetDevice cuStreamGetFlags cuStreamGetGreenCtx
        cuStreamGetId cuStreamGetPriority cuStreamQuery cuStreamSetAttribute cuStreamWaitEvent
        cuStreamWaitValue32 cuStreamWaitValue64 cuStreamWriteValue32 cuStreamWriteValue64
        cuEventDestroy cuEventElapsedTime cuEventQuery cuEventRecord cuEventRecordWithFlags
        cuIpcGetEventHandle cuIpcOpenEventHandle cuEventCreateFromEGLSync cuLaunchHostFunc
        cuImportExternalSemaphore cuDestroyExternalSemaphore cuSignalExternalSemaphoresAsync
        cuWaitExternalSemaphoresAsync";
    Cuda TakesNothing "describes functions, and links code in the host's memory": "
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
    Cuda TakesNothing "describes how arrays and memory are read": "
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
    Cuda TakesNothing "describes work of a graph in the host's memory": "
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
    Cuda Overhead "may load the code of an image that is charged for its variables, where the driver is lazy": "
        cuModuleGetFunction cuModuleGetGlobal cuLibraryGetGlobal cuLibraryGetManaged cuLibraryGetModule
        cuLibraryGetUnifiedFunction cuKernelGetFunction cuFuncLoad";
    Cuda Overhead "takes a little for queues and page tables": "
        cuStreamCreate cuStreamCreateWithPriority cuGreenCtxStreamCreate cuEventCreate
        cuCtxEnablePeerAccess";
    Cuda TakesNothing "says who takes part in what memory can be bound to, which has none of its own": "
        cuMulticastAddDevice cuMulticastGetGranularity cuLogicalEndpointAddDevice cuLogicalEndpointCreate
        cuLogicalEndpointExport cuLogicalEndpointGetLimits cuLogicalEndpointIdRelease
        cuLogicalEndpointIdReserve cuLogicalEndpointImport cuLogicalEndpointQuery";
    Cuda TakesNothing "makes graphs, whose memory is charged when they are launched, and says what they hold": "
        cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuGraphAddChildGraphNode
        cuDeviceGetGraphMemAttribute cuDeviceSetGraphMemAttribute cuStreamBeginCapture
        cuStreamBeginCaptureToGraph cuStreamBeginRecaptureToGraph cuStreamEndCapture";
    Cuda Gap "may bring pages of the host's own memory to a card, as a touch does, where they stay while there is room; managed memory is charged": "
        cuMemAdvise cuMemPrefetchAsync cuMemPrefetchBatchAsync cuMemDiscardBatchAsync
        cuMemDiscardAndPrefetchBatchAsync cuStreamAttachMemAsync";
    Cuda Overhead "maps what another interface made, and takes no more than tables; the agent counts what that took": "
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
    Cuda Gap "hands out private tables, whose functions are not hooked": "
        cuGetExportTable";
    Cuda TakesNothing "is exported without a declaration; by its name it starts an interface, or describes memory that is there": "
        cuEGLApiInit cuMemGetAttribute";
    Cuda Overhead "turns a profiler on and off, whose buffers the agent counts": "
        cuProfilerInitialize cuProfilerStart cuProfilerStop";
    Cuda Overhead "functions and variables of the driver's side of a debugger, which calls and sets them; the agent counts what it takes": "
        cudbgApiAttach cudbgApiClientPid cudbgApiClientRevision cudbgApiDetach cudbgApiInit
        cudbgAttachHandlerAvailable cudbgDebuggerCapabilities cudbgDebuggerInitialized
        cudbgDetachSuspendedDevicesMask cudbgEnableIntegratedMemcheck cudbgEnableLaunchBlocking
        cudbgEnablePreemptionDebugging cudbgGetAPI cudbgGetAPIVersion cudbgInjectionPath cudbgIpcFlag
        cudbgMain cudbgReportDriverApiError cudbgReportDriverApiErrorFlags
        cudbgReportDriverInternalError cudbgReportedDriverApiErrorCode
        cudbgReportedDriverApiErrorFuncNameAddr cudbgReportedDriverApiErrorFuncNameSize
        cudbgReportedDriverInternalErrorCode cudbgResumeForAttachDetach cudbgRpcEnabled cudbgSessionId
        cudbgUseExternalDebugger";
    Nvml Gap "hands out private tables, whose functions are not hooked; nvidia-smi reads the processes of the card there": "
        nvmlInternalGetExportTable";
    Nvml TakesNothing "clocks, errors, counters and wiring of the memory; names of processes": "
        nvmlDeviceGetMemClkMinMaxVfOffset nvmlDeviceGetMemClkVfOffset nvmlDeviceGetMemoryAffinity
        nvmlDeviceGetMemoryBusWidth nvmlDeviceGetMemoryErrorCounter nvmlDeviceGetSupportedMemoryClocks
        nvmlDeviceGetUnrepairableMemoryFlag nvmlDeviceGetFieldValues nvmlDeviceClearFieldValues
        nvmlSystemGetProcessName";
    Nvml TakesNothing "settings of the whole card and limits of the driver's own, for root to change": "
        nvmlDeviceGetMemoryLimits nvmlDeviceSetMemoryLimits nvmlDeviceSetAccountingMode
        nvmlDeviceSetConfComputeUnprotectedMemSize nvmlDeviceSetMemClkVfOffset
        nvmlDeviceSetMemoryLockedClocks nvmlDeviceResetMemoryLockedClocks";
    Nvml TakesNothing "says how processes are accounted for, and forgets them, for root to do": "
        nvmlDeviceGetAccountingBufferSize nvmlDeviceGetAccountingMode nvmlDeviceClearAccountingPids
        nvmlVgpuInstanceClearAccountingPids nvmlVgpuInstanceGetAccountingMode";
    Nvml Gap "shows the processes of virtual machines, which only a host that has them can ask for": "
        nvmlDeviceGetVgpuProcessUtilization nvmlDeviceGetVgpuProcessesUtilizationInfo
        nvmlVgpuInstanceGetAccountingPids nvmlVgpuInstanceGetAccountingStats";
    Nvml Gap "shows the memory of the whole card, of its window or of its parts": "
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
