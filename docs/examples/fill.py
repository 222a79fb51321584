"""Says how large the GPU looks, then takes memory in steps of 100 MiB until the driver refuses.

It is an ordinary CUDA program: it loads the driver's library and knows nothing of Apportion.
"""

from ctypes import CDLL, byref, c_int, c_size_t, c_uint64, c_void_p

MIB = 1 << 20
OUT_OF_MEMORY = 2

cuda = CDLL("libcuda.so.1")


def check(what, status):
    if status != 0:
        raise SystemExit(f"{what}: CUDA error {status}")


def memory():
    free, total = c_size_t(), c_size_t()
    check("cuMemGetInfo", cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return f"{free.value // MIB} MiB free of {total.value // MIB} MiB"


device, context = c_int(), c_void_p()
check("cuInit", cuda.cuInit(0))
check("cuDeviceGet", cuda.cuDeviceGet(byref(device), 0))
check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(byref(context), device))
check("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))
print("at first:", memory())

steps = 0
while (status := cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(100 * MIB))) == 0:
    steps += 1
if status != OUT_OF_MEMORY:
    check("cuMemAlloc", status)
print(f"after {steps} allocations of 100 MiB: CUDA_ERROR_OUT_OF_MEMORY,", memory())
