"""cuda-bindings as a client: the driver API as a C program would use it.

Runs on any driver, simulated or real, with a limit or without. `--expect-total MIB` says how large
the first card must look.
"""

import argparse
import ctypes
import os

from cuda.bindings import driver as cu

MIB = 1 << 20
OOM = cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY
INVALID = cu.CUresult.CUDA_ERROR_INVALID_VALUE


def done(result):
    """The values of a call that must succeed."""
    status, *values = result
    assert status == cu.CUresult.CUDA_SUCCESS, status
    return values[0] if len(values) == 1 else values


def fails(code, result):
    assert result[0] == code, f"{result[0]} and not {code}"


def free_bytes():
    return done(cu.cuMemGetInfo())[0]


def check_queries(device, expect_total):
    free, total = done(cu.cuMemGetInfo())
    assert 0 < free <= total
    assert done(cu.cuDeviceTotalMem(device)) == total
    if expect_total is not None:
        assert total == expect_total * MIB, (total // MIB, expect_total)
    assert len(done(cu.cuDeviceGetUuid(device)).bytes) == 16
    address = done(cu.cuDeviceGetPCIBusId(32, device))
    assert int(done(cu.cuDeviceGetByPCIBusId(address))) == int(device)
    assert done(cu.cuGetErrorName(OOM)) == b"CUDA_ERROR_OUT_OF_MEMORY"


def check_plain_memory():
    before = free_bytes()
    memory = done(cu.cuMemAlloc(8 * MIB))
    assert before - free_bytes() == 8 * MIB
    done(cu.cuMemsetD32(memory, 0x01020304, 1024))
    out = (ctypes.c_uint8 * 4096)()
    done(cu.cuMemcpyDtoH(out, memory, 4096))
    assert bytes(out) == bytes([4, 3, 2, 1]) * 1024
    base, size = done(cu.cuMemGetAddressRange(int(memory) + 5))
    assert (int(base), size) == (int(memory), 8 * MIB)
    fails(INVALID, cu.cuMemcpyDtoH(out, int(memory) + 8 * MIB - 1, 4096))
    done(cu.cuMemFree(memory))
    fails(INVALID, cu.cuMemFree(memory))
    fails(OOM, cu.cuMemAlloc(before + MIB))
    assert free_bytes() == before


def check_other_kinds():
    before = free_bytes()
    memory, pitch = done(cu.cuMemAllocPitch(1000, 4096, 4))
    assert pitch >= 1000 and before - free_bytes() >= 4096 * 1000
    done(cu.cuMemFree(memory))
    global_flag = cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value
    managed = done(cu.cuMemAllocManaged(4 * MIB, global_flag))
    ctypes.memset(int(managed), 1, 4 * MIB)
    is_managed = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
    assert done(cu.cuPointerGetAttribute(is_managed, managed))
    done(cu.cuMemFree(managed))
    host = done(cu.cuMemHostAlloc(4 * MIB, 0))
    assert free_bytes() == before, "host memory costs no device memory"
    done(cu.cuMemFreeHost(host))
    descriptor = cu.CUDA_ARRAY_DESCRIPTOR()
    descriptor.Width, descriptor.Height, descriptor.NumChannels = 2048, 1024, 4
    descriptor.Format = cu.CUarray_format.CU_AD_FORMAT_FLOAT
    array = done(cu.cuArrayCreate(descriptor))
    assert before - free_bytes() >= 2048 * 1024 * 16
    done(cu.cuArrayDestroy(array))
    pyramid = cu.CUDA_ARRAY3D_DESCRIPTOR()
    pyramid.Width, pyramid.Height, pyramid.NumChannels = 2048, 1024, 4
    pyramid.Format = cu.CUarray_format.CU_AD_FORMAT_FLOAT
    mipmap = done(cu.cuMipmappedArrayCreate(pyramid, 4))
    assert before - free_bytes() >= 2048 * 1024 * 16 * 5 // 4, "smaller levels cost, too"
    level = done(cu.cuMipmappedArrayGetLevel(mipmap, 3))
    assert done(cu.cuArray3DGetDescriptor(level)).Width == 256
    done(cu.cuMipmappedArrayDestroy(mipmap))
    assert free_bytes() == before


def check_pools(device):
    attributes = cu.CUmemPool_attribute
    stream = done(cu.cuStreamCreate(0))
    pool = done(cu.cuDeviceGetDefaultMemPool(device))
    before = free_bytes()
    memory = done(cu.cuMemAllocAsync(5 * MIB, stream))
    reserved = attributes.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
    assert int(done(cu.cuMemPoolGetAttribute(pool, reserved))) == before - free_bytes() >= 5 * MIB
    used = attributes.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    assert int(done(cu.cuMemPoolGetAttribute(pool, used))) == 5 * MIB
    done(cu.cuMemFreeAsync(memory, stream))
    done(cu.cuStreamSynchronize(stream))
    assert free_bytes() == before, "a threshold of zero keeps nothing"
    threshold = attributes.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    done(cu.cuMemPoolSetAttribute(pool, threshold, cu.cuuint64_t(1 << 40)))
    memory = done(cu.cuMemAllocAsync(5 * MIB, stream))
    done(cu.cuMemFreeAsync(memory, stream))
    done(cu.cuStreamSynchronize(stream))
    assert free_bytes() < before, "a high threshold keeps what was freed"
    done(cu.cuMemPoolTrimTo(pool, 0))
    assert free_bytes() == before
    done(cu.cuMemPoolSetAttribute(pool, threshold, cu.cuuint64_t(0)))
    fails(OOM, cu.cuMemAllocAsync(before + MIB, stream))
    done(cu.cuStreamDestroy(stream))


def properties(device):
    wanted = cu.CUmemAllocationProp()
    wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = int(device)
    kinds = cu.CUmemAllocationHandleType
    wanted.requestedHandleTypes = kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return wanted


def access(device):
    wanted = cu.CUmemAccessDesc()
    wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = int(device)
    wanted.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return wanted


def check_virtual_memory(device):
    before = free_bytes()
    minimum = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    step = done(cu.cuMemGetAllocationGranularity(properties(device), minimum))
    size = 4 * step
    fails(INVALID, cu.cuMemCreate(step + 1, properties(device), 0))
    address = done(cu.cuMemAddressReserve(4 * size, 0, 0, 0))
    assert free_bytes() == before, "addresses are not memory"
    handle = done(cu.cuMemCreate(size, properties(device), 0))
    assert before - free_bytes() == size
    for part in range(2):
        done(cu.cuMemMap(int(address) + part * size, size, 0, handle, 0))
    done(cu.cuMemSetAccess(address, 2 * size, [access(device)], 1))
    done(cu.cuMemRelease(handle))
    assert before - free_bytes() == size, "a mapping keeps released memory"
    done(cu.cuMemsetD8(address, 9, size))
    out = (ctypes.c_uint8 * 16)()
    done(cu.cuMemcpyDtoH(out, int(address) + 2 * size - 16, 16))
    assert bytes(out) == bytes([9]) * 16, "two mappings of one memory show the same bytes"
    again = done(cu.cuMemRetainAllocationHandle(int(address)))
    done(cu.cuMemUnmap(address, 2 * size))
    assert before - free_bytes() == size, "a retained handle keeps unmapped memory"
    done(cu.cuMemRelease(again))
    assert free_bytes() == before
    done(cu.cuMemAddressFree(address, 4 * size))
    fails(OOM, cu.cuMemCreate((before // step + 1) * step, properties(device), 0))


def check_sharing(device):
    """A descriptor names the memory, for this process as for any other that gets it."""
    before = free_bytes()
    kinds = cu.CUmemAllocationHandleType
    kind = kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    handle = done(cu.cuMemCreate(4 * MIB, properties(device), 0))
    descriptor = int(done(cu.cuMemExportToShareableHandle(handle, kind, 0)))
    imported = done(cu.cuMemImportFromShareableHandle(descriptor, kind))
    os.close(descriptor)
    done(cu.cuMemRelease(handle))
    assert before - free_bytes() == 4 * MIB
    done(cu.cuMemRelease(imported))
    assert free_bytes() == before


def check_entry_points():
    """A name, a version and a kind of stream decide which entry point a program gets."""
    flags = cu.CUdriverProcAddress_flags
    legacy = flags.CU_GET_PROC_ADDRESS_LEGACY_STREAM
    per_thread = flags.CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
    find = lambda name, version, flag: done(cu.cuGetProcAddress(name, version, flag.value))
    library = ctypes.CDLL("libcuda.so.1")
    address = lambda name: ctypes.cast(library[name], ctypes.c_void_p).value
    for name, version, flag, symbol in [
        (b"cuMemAlloc", 2000, legacy, "cuMemAlloc"),
        (b"cuMemAlloc", 3020, legacy, "cuMemAlloc_v2"),
        (b"cuCtxCreate", 12000, legacy, "cuCtxCreate_v3"),
        (b"cuMemAllocAsync", 12000, legacy, "cuMemAllocAsync"),
        (b"cuMemAllocAsync", 12000, per_thread, "cuMemAllocAsync_ptsz"),
        (b"cuMemcpyHtoD", 12000, per_thread, "cuMemcpyHtoD_v2_ptds"),
        (b"cuMemAlloc", 12000, per_thread, "cuMemAlloc_v2"),
    ]:
        assert find(name, version, flag)[0] == address(symbol), (name, version, symbol)
    statuses = cu.CUdriverProcAddressQueryResult
    too_old = find(b"cuMemAllocAsync", 11000, legacy)[1]
    assert too_old == statuses.CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, too_old


def check_contexts(device):
    """A context costs memory; its end gives back all that was allocated in it."""
    before = free_bytes()
    context = done(cu.cuCtxCreate(None, 0, device))
    with_context = free_bytes()
    assert with_context < before
    done(cu.cuMemAlloc(16 * MIB))
    assert with_context - free_bytes() == 16 * MIB
    done(cu.cuCtxDestroy(context))
    assert free_bytes() == before
    fails(cu.CUresult.CUDA_ERROR_INVALID_DEVICE, cu.cuDeviceGet(1000))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--expect-total", type=int)
    arguments = parser.parse_args()
    fails(cu.CUresult.CUDA_ERROR_NOT_INITIALIZED, cu.cuDeviceGetCount())
    done(cu.cuInit(0))
    device = done(cu.cuDeviceGet(0))
    done(cu.cuCtxSetCurrent(done(cu.cuDevicePrimaryCtxRetain(device))))
    check_queries(device, arguments.expect_total)
    check_plain_memory()
    check_other_kinds()
    check_pools(device)
    check_virtual_memory(device)
    check_sharing(device)
    check_entry_points()
    check_contexts(device)
    done(cu.cuDevicePrimaryCtxRelease(device))
    print("OK cuda-bindings")


main()
