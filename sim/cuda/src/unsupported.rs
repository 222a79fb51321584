//! Driver features that are not simulated: external memory and semaphores, pools of other processes, checkpoints to
//! storage, fabrics. Each function is found under its name and version, and returns that it is not supported, or
//! that a handle is invalid if nothing could have created one.

use crate::driver::driver;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, Outcome};
use crate::export::exports;
use crate::pointer::{In, Out, Text};
use crate::stream::stream;

exports! {
    cuCheckpointOperationComplete() = unsupported => "cuCheckpointOperationComplete" @ 13040;

    cuImportExternalMemory() = unsupported => "cuImportExternalMemory" @ 10000;
    cuDestroyExternalMemory() = no_handle => "cuDestroyExternalMemory" @ 10000;
    cuExternalMemoryGetMappedBuffer() = no_handle => "cuExternalMemoryGetMappedBuffer" @ 10000;
    cuExternalMemoryGetMappedMipmappedArray() = no_handle => "cuExternalMemoryGetMappedMipmappedArray" @ 10000;
    cuImportExternalSemaphore() = unsupported => "cuImportExternalSemaphore" @ 10000;
    cuDestroyExternalSemaphore() = no_handle => "cuDestroyExternalSemaphore" @ 10000;
    cuSignalExternalSemaphoresAsync(all: In<u64>, parameters: In<u8>, count: u32, stream: u64) = no_semaphores => "cuSignalExternalSemaphoresAsync" @ 10000 | cuSignalExternalSemaphoresAsync_ptsz @ 10000;
    cuWaitExternalSemaphoresAsync(all: In<u64>, parameters: In<u8>, count: u32, stream: u64) = no_semaphores => "cuWaitExternalSemaphoresAsync" @ 10000 | cuWaitExternalSemaphoresAsync_ptsz @ 10000;
    cuGraphAddExternalSemaphoresSignalNode() = unsupported => "cuGraphAddExternalSemaphoresSignalNode" @ 11020;
    cuGraphAddExternalSemaphoresWaitNode() = unsupported => "cuGraphAddExternalSemaphoresWaitNode" @ 11020;
    cuGraphExternalSemaphoresSignalNodeGetParams() = no_value => "cuGraphExternalSemaphoresSignalNodeGetParams" @ 11020;
    cuGraphExternalSemaphoresSignalNodeSetParams() = no_value => "cuGraphExternalSemaphoresSignalNodeSetParams" @ 11020;
    cuGraphExternalSemaphoresWaitNodeGetParams() = no_value => "cuGraphExternalSemaphoresWaitNodeGetParams" @ 11020;
    cuGraphExternalSemaphoresWaitNodeSetParams() = no_value => "cuGraphExternalSemaphoresWaitNodeSetParams" @ 11020;
    cuGraphExecExternalSemaphoresSignalNodeSetParams() = no_value => "cuGraphExecExternalSemaphoresSignalNodeSetParams" @ 11020;
    cuGraphExecExternalSemaphoresWaitNodeSetParams() = no_value => "cuGraphExecExternalSemaphoresWaitNodeSetParams" @ 11020;

    cuGraphicsUnregisterResource() = no_handle => "cuGraphicsUnregisterResource" @ 3000;
    cuGraphicsSubResourceGetMappedArray() = no_handle => "cuGraphicsSubResourceGetMappedArray" @ 3000;
    cuGraphicsResourceGetMappedMipmappedArray() = no_handle => "cuGraphicsResourceGetMappedMipmappedArray" @ 5000;
    cuGraphicsResourceGetMappedPointer() = no_handle => "cuGraphicsResourceGetMappedPointer" @ 3000;
    cuGraphicsResourceGetMappedPointer_v2() = no_handle => "cuGraphicsResourceGetMappedPointer" @ 3020;
    cuGraphicsResourceSetMapFlags() = no_handle => "cuGraphicsResourceSetMapFlags" @ 3000;
    cuGraphicsResourceSetMapFlags_v2() = no_handle => "cuGraphicsResourceSetMapFlags" @ 6050;
    cuGraphicsMapResources(count: u32, all: In<u64>, stream: u64) = no_resources => "cuGraphicsMapResources" @ 3000 | cuGraphicsMapResources_ptsz @ 7000;
    cuGraphicsUnmapResources(count: u32, all: In<u64>, stream: u64) = no_resources => "cuGraphicsUnmapResources" @ 3000 | cuGraphicsUnmapResources_ptsz @ 7000;

    cuMemPoolExportToShareableHandle() = no_value => "cuMemPoolExportToShareableHandle" @ 11020;
    cuMemPoolImportFromShareableHandle() = unsupported => "cuMemPoolImportFromShareableHandle" @ 11020;
    cuMemPoolExportPointer() = no_value => "cuMemPoolExportPointer" @ 11020;
    cuMemPoolImportPointer() = no_value => "cuMemPoolImportPointer" @ 11020;

    cuMemBatchDecompressAsync() = unsupported => "cuMemBatchDecompressAsync" @ 12060 | cuMemBatchDecompressAsync_ptsz @ 12060;
    cuMemGetLocationInfo() = unsupported => "cuMemGetLocationInfo" @ 13040;
    cuFlushGPUDirectRDMAWrites() = unsupported => "cuFlushGPUDirectRDMAWrites" @ 11030;
    cuLibraryGetUnifiedFunction(out: Out<u64>, library: u64, name: Text) = no_unified_function => "cuLibraryGetUnifiedFunction" @ 12000;
    cuTensorMapSetAllocationClass() = unsupported => "cuTensorMapSetAllocationClass" @ 13050;
    cuDeviceGetNvSciSyncAttributes() = unsupported => "cuDeviceGetNvSciSyncAttributes" @ 10020;
    cuDeviceGetCliqueCount() = unsupported => "cuDeviceGetCliqueCount" @ 13040;
    cuDeviceGetCliqueInfo() = unsupported => "cuDeviceGetCliqueInfo" @ 13040;
    cuDeviceGetFabricClusterUuid() = unsupported => "cuDeviceGetFabricClusterUuid" @ 13040;
    cuDeviceGetHostAtomicCapabilities(found: Out<u32>, operations: In<u32>, count: u32, device: i32) = no_host_atomics => "cuDeviceGetHostAtomicCapabilities" @ 13000;
    cuDeviceGetP2PAtomicCapabilities(found: Out<u32>, operations: In<u32>, count: u32, from: i32, to: i32) = no_peer_atomics => "cuDeviceGetP2PAtomicCapabilities" @ 13000;
    cuFabricCpyBatchAsync() = unsupported => "cuFabricCpyBatchAsync" @ 13050 | cuFabricCpyBatchAsync_ptsz @ 13050;
    cuStreamBeginCaptureToCig() = unsupported => "cuStreamBeginCaptureToCig" @ 13010 | cuStreamBeginCaptureToCig_ptsz @ 13010;
    cuStreamEndCaptureToCig() = unsupported => "cuStreamEndCaptureToCig" @ 13010 | cuStreamEndCaptureToCig_ptsz @ 13010;
    cuStreamBeginRecaptureToGraph() = unsupported => "cuStreamBeginRecaptureToGraph" @ 13030 | cuStreamBeginRecaptureToGraph_ptsz @ 13030;

    cuLogicalEndpointIdReserve() = unsupported => "cuLogicalEndpointIdReserve" @ 13030;
    cuLogicalEndpointIdRelease() = unsupported => "cuLogicalEndpointIdRelease" @ 13030;
    cuLogicalEndpointCreate() = unsupported => "cuLogicalEndpointCreate" @ 13030;
    cuLogicalEndpointDestroy() = unsupported => "cuLogicalEndpointDestroy" @ 13030;
    cuLogicalEndpointAddDevice() = unsupported => "cuLogicalEndpointAddDevice" @ 13030;
    cuLogicalEndpointBindAddr() = unsupported => "cuLogicalEndpointBindAddr" @ 13030;
    cuLogicalEndpointBindMem() = unsupported => "cuLogicalEndpointBindMem" @ 13030;
    cuLogicalEndpointUnbind() = unsupported => "cuLogicalEndpointUnbind" @ 13030;
    cuLogicalEndpointExport() = unsupported => "cuLogicalEndpointExport" @ 13030;
    cuLogicalEndpointImport() = unsupported => "cuLogicalEndpointImport" @ 13030;
    cuLogicalEndpointGetLimits() = unsupported => "cuLogicalEndpointGetLimits" @ 13030;
    cuLogicalEndpointQuery() = unsupported => "cuLogicalEndpointQuery" @ 13030;
}

fn unsupported() -> Outcome {
    Err(NOT_SUPPORTED)
}

fn no_handle() -> Outcome {
    Err(INVALID_HANDLE)
}

fn no_value() -> Outcome {
    Err(INVALID_VALUE)
}

/// Succeeds for an empty list. No handle in the list can be valid.
fn none_of(count: u32, on: u64) -> Outcome {
    stream(on)?;
    if count == 0 {
        Ok(())
    } else {
        Err(INVALID_HANDLE)
    }
}

fn no_semaphores(_all: In<u64>, _parameters: In<u8>, count: u32, on: u64) -> Outcome {
    none_of(count, on)
}

fn no_resources(count: u32, _all: In<u64>, on: u64) -> Outcome {
    none_of(count, on)
}

/// No device function has an address that the host could call.
fn no_unified_function(out: Out<u64>, library: u64, name: Text) -> Outcome {
    out.check()?;
    name.get()?;
    if crate::driver::tables().libraries.contains_key(&library) {
        Err(NOT_FOUND)
    } else {
        Err(INVALID_HANDLE)
    }
}

/// No operation is atomic between cards.
fn no_atomics(found: Out<u32>, operations: In<u32>, count: u32) -> Outcome {
    (0..count as usize).try_for_each(|at| {
        operations.at(at)?;
        found.put_at(at, 0)
    })
}

fn no_host_atomics(found: Out<u32>, operations: In<u32>, count: u32, device: i32) -> Outcome {
    driver()?.card(device)?;
    no_atomics(found, operations, count)
}

fn no_peer_atomics(
    found: Out<u32>,
    operations: In<u32>,
    count: u32,
    from: i32,
    to: i32,
) -> Outcome {
    driver()?.card(from)?;
    driver()?.card(to)?;
    no_atomics(found, operations, count)
}
