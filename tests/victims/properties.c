/* cudaDeviceProp as the header of one major version lays it out, beside the driver's attributes of the same names. Prints
 * what differs, then how many fields were compared. MAJOR is the version. */

#include <driver_types.h>
#include <stdio.h>
#include <string.h>

#if MAJOR == 12
#define cudaGetDeviceProperties cudaGetDeviceProperties_v2
#endif

int cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device);
int cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
int cudaMemGetInfo(size_t *free, size_t *total);

static const unsigned char UNTOUCHED = 0xa5;
static int compared, known, differing;

static void compare(const char *field, unsigned long long value, int attribute)
{
    int wanted = -1;
    int code = cudaDeviceGetAttribute(&wanted, (enum cudaDeviceAttr)attribute, 0);
    compared++;
    known += wanted != 0;
    if (code || value != (unsigned long long)wanted) {
        printf("%s: %llu, attribute %d: %d (code %d)\n", field, value, attribute, wanted, code);
        differing++;
    }
}

int main(void)
{
    struct {
        struct cudaDeviceProp all;
        unsigned char behind[64];
    } place;
    struct cudaDeviceProp *p = &place.all;
    size_t free_bytes, total, at;

    memset(&place, UNTOUCHED, sizeof place);
    if (cudaGetDeviceProperties(p, 0) || cudaMemGetInfo(&free_bytes, &total)) return 1;

#define NUMBER(field, attribute) compare(#field, (unsigned long long)p->field, attribute);
    NUMBER(sharedMemPerBlock, cudaDevAttrMaxSharedMemoryPerBlock)
    NUMBER(regsPerBlock, cudaDevAttrMaxRegistersPerBlock)
    NUMBER(warpSize, cudaDevAttrWarpSize)
    NUMBER(memPitch, cudaDevAttrMaxPitch)
    NUMBER(maxThreadsPerBlock, cudaDevAttrMaxThreadsPerBlock)
    NUMBER(maxThreadsDim[0], cudaDevAttrMaxBlockDimX)
    NUMBER(maxThreadsDim[2], cudaDevAttrMaxBlockDimZ)
    NUMBER(maxGridSize[0], cudaDevAttrMaxGridDimX)
    NUMBER(maxGridSize[2], cudaDevAttrMaxGridDimZ)
    NUMBER(totalConstMem, cudaDevAttrTotalConstantMemory)
    NUMBER(major, cudaDevAttrComputeCapabilityMajor)
    NUMBER(minor, cudaDevAttrComputeCapabilityMinor)
    NUMBER(textureAlignment, cudaDevAttrTextureAlignment)
    NUMBER(texturePitchAlignment, cudaDevAttrTexturePitchAlignment)
    NUMBER(multiProcessorCount, cudaDevAttrMultiProcessorCount)
    NUMBER(integrated, cudaDevAttrIntegrated)
    NUMBER(canMapHostMemory, cudaDevAttrCanMapHostMemory)
    NUMBER(maxTexture1D, cudaDevAttrMaxTexture1DWidth)
    NUMBER(maxTexture1DMipmap, cudaDevAttrMaxTexture1DMipmappedWidth)
    NUMBER(maxTexture2D[1], cudaDevAttrMaxTexture2DHeight)
    NUMBER(maxTexture2DMipmap[0], cudaDevAttrMaxTexture2DMipmappedWidth)
    NUMBER(maxTexture2DLinear[2], cudaDevAttrMaxTexture2DLinearPitch)
    NUMBER(maxTexture2DGather[0], cudaDevAttrMaxTexture2DGatherWidth)
    NUMBER(maxTexture3D[2], cudaDevAttrMaxTexture3DDepth)
    NUMBER(maxTexture3DAlt[2], cudaDevAttrMaxTexture3DDepthAlt)
    NUMBER(maxTextureCubemap, cudaDevAttrMaxTextureCubemapWidth)
    NUMBER(maxTexture1DLayered[1], cudaDevAttrMaxTexture1DLayeredLayers)
    NUMBER(maxTexture2DLayered[2], cudaDevAttrMaxTexture2DLayeredLayers)
    NUMBER(maxTextureCubemapLayered[1], cudaDevAttrMaxTextureCubemapLayeredLayers)
    NUMBER(maxSurface1D, cudaDevAttrMaxSurface1DWidth)
    NUMBER(maxSurface2D[1], cudaDevAttrMaxSurface2DHeight)
    NUMBER(maxSurface3D[2], cudaDevAttrMaxSurface3DDepth)
    NUMBER(maxSurface1DLayered[1], cudaDevAttrMaxSurface1DLayeredLayers)
    NUMBER(maxSurface2DLayered[2], cudaDevAttrMaxSurface2DLayeredLayers)
    NUMBER(maxSurfaceCubemap, cudaDevAttrMaxSurfaceCubemapWidth)
    NUMBER(maxSurfaceCubemapLayered[1], cudaDevAttrMaxSurfaceCubemapLayeredLayers)
    NUMBER(surfaceAlignment, cudaDevAttrSurfaceAlignment)
    NUMBER(concurrentKernels, cudaDevAttrConcurrentKernels)
    NUMBER(ECCEnabled, cudaDevAttrEccEnabled)
    NUMBER(pciBusID, cudaDevAttrPciBusId)
    NUMBER(pciDeviceID, cudaDevAttrPciDeviceId)
    NUMBER(pciDomainID, cudaDevAttrPciDomainId)
    NUMBER(tccDriver, cudaDevAttrTccDriver)
    NUMBER(asyncEngineCount, cudaDevAttrAsyncEngineCount)
    NUMBER(unifiedAddressing, cudaDevAttrUnifiedAddressing)
    NUMBER(memoryBusWidth, cudaDevAttrGlobalMemoryBusWidth)
    NUMBER(l2CacheSize, cudaDevAttrL2CacheSize)
    NUMBER(persistingL2CacheMaxSize, cudaDevAttrMaxPersistingL2CacheSize)
    NUMBER(maxThreadsPerMultiProcessor, cudaDevAttrMaxThreadsPerMultiProcessor)
    NUMBER(streamPrioritiesSupported, cudaDevAttrStreamPrioritiesSupported)
    NUMBER(globalL1CacheSupported, cudaDevAttrGlobalL1CacheSupported)
    NUMBER(localL1CacheSupported, cudaDevAttrLocalL1CacheSupported)
    NUMBER(sharedMemPerMultiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor)
    NUMBER(regsPerMultiprocessor, cudaDevAttrMaxRegistersPerMultiprocessor)
    NUMBER(managedMemory, cudaDevAttrManagedMemory)
    NUMBER(isMultiGpuBoard, cudaDevAttrIsMultiGpuBoard)
    NUMBER(multiGpuBoardGroupID, cudaDevAttrMultiGpuBoardGroupID)
    NUMBER(hostNativeAtomicSupported, cudaDevAttrHostNativeAtomicSupported)
    NUMBER(pageableMemoryAccess, cudaDevAttrPageableMemoryAccess)
    NUMBER(concurrentManagedAccess, cudaDevAttrConcurrentManagedAccess)
    NUMBER(computePreemptionSupported, cudaDevAttrComputePreemptionSupported)
    NUMBER(canUseHostPointerForRegisteredMem, cudaDevAttrCanUseHostPointerForRegisteredMem)
    NUMBER(cooperativeLaunch, cudaDevAttrCooperativeLaunch)
    NUMBER(sharedMemPerBlockOptin, cudaDevAttrMaxSharedMemoryPerBlockOptin)
    NUMBER(pageableMemoryAccessUsesHostPageTables, cudaDevAttrPageableMemoryAccessUsesHostPageTables)
    NUMBER(directManagedMemAccessFromHost, cudaDevAttrDirectManagedMemAccessFromHost)
    NUMBER(maxBlocksPerMultiProcessor, cudaDevAttrMaxBlocksPerMultiprocessor)
    NUMBER(accessPolicyMaxWindowSize, cudaDevAttrMaxAccessPolicyWindowSize)
    NUMBER(reservedSharedMemPerBlock, cudaDevAttrReservedSharedMemoryPerBlock)
    NUMBER(hostRegisterSupported, cudaDevAttrHostRegisterSupported)
    NUMBER(sparseCudaArraySupported, cudaDevAttrSparseCudaArraySupported)
    NUMBER(hostRegisterReadOnlySupported, cudaDevAttrHostRegisterReadOnlySupported)
    NUMBER(timelineSemaphoreInteropSupported, cudaDevAttrTimelineSemaphoreInteropSupported)
    NUMBER(memoryPoolsSupported, cudaDevAttrMemoryPoolsSupported)
    NUMBER(gpuDirectRDMASupported, cudaDevAttrGPUDirectRDMASupported)
    NUMBER(gpuDirectRDMAFlushWritesOptions, cudaDevAttrGPUDirectRDMAFlushWritesOptions)
    NUMBER(gpuDirectRDMAWritesOrdering, cudaDevAttrGPUDirectRDMAWritesOrdering)
    NUMBER(memoryPoolSupportedHandleTypes, cudaDevAttrMemoryPoolSupportedHandleTypes)
    NUMBER(deferredMappingCudaArraySupported, cudaDevAttrDeferredMappingCudaArraySupported)
    NUMBER(ipcEventSupported, cudaDevAttrIpcEventSupport)
    NUMBER(clusterLaunch, cudaDevAttrClusterLaunch)
#if MAJOR == 12
    NUMBER(clockRate, cudaDevAttrClockRate)
    NUMBER(deviceOverlap, cudaDevAttrGpuOverlap)
    NUMBER(kernelExecTimeoutEnabled, cudaDevAttrKernelExecTimeout)
    NUMBER(computeMode, cudaDevAttrComputeMode)
    NUMBER(maxTexture1DLinear, cudaDevAttrMaxTexture1DLinearWidth)
    NUMBER(memoryClockRate, cudaDevAttrMemoryClockRate)
    NUMBER(singleToDoublePrecisionPerfRatio, cudaDevAttrSingleToDoublePrecisionPerfRatio)
#else
    NUMBER(deviceNumaConfig, cudaDevAttrNumaConfig)
    NUMBER(deviceNumaId, cudaDevAttrNumaId)
    NUMBER(mpsEnabled, cudaDevAttrMpsEnabled)
    NUMBER(hostNumaId, cudaDevAttrHostNumaId)
    NUMBER(gpuPciDeviceID, cudaDevAttrGpuPciDeviceId)
    NUMBER(gpuPciSubsystemID, cudaDevAttrGpuPciSubsystemId)
    NUMBER(hostNumaMultinodeIpcSupported, cudaDevAttrHostNumaMultinodeIpcSupported)
#endif

    if (p->totalGlobalMem != total) {
        printf("totalGlobalMem: %zu, cudaMemGetInfo: %zu\n", p->totalGlobalMem, total);
        differing++;
    }
    for (at = 0; at < sizeof p->reserved; at++) differing += ((unsigned char *)p->reserved)[at] != 0;
    for (at = 0; at < sizeof place.behind; at++) differing += place.behind[at] != UNTOUCHED;
    printf("%s: %d fields, %d differ, known %d\n", p->name, compared, differing, known >= 50);
    return 0;
}
