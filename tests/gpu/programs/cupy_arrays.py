"""CuPy: sees the limit, raises its own out-of-memory error there, and computes afterwards."""

import os

import witness

cupy = witness.needs("cupy")
try:
    cupy.cuda.runtime.getDeviceCount()
    _, total = cupy.cuda.runtime.memGetInfo()
except cupy.cuda.runtime.CUDARuntimeError as error:
    witness.leave_out(f"cupy sees no card ({error})")

if os.environ.get("GPU_TIER_ASYNC"):
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)


def take(size):
    return cupy.empty(size, dtype=cupy.uint8)


held, refusal = witness.take_until_refused(take, cupy.cuda.memory.OutOfMemoryError)
count = len(held)
held.clear()
cupy.get_default_memory_pool().free_all_blocks()
cupy.cuda.Device().synchronize()

numbers = cupy.arange(1 << 20, dtype=cupy.float64)
assert float(numbers.sum()) == (1 << 20) * ((1 << 20) - 1) / 2
witness.say(total, count, refusal)
