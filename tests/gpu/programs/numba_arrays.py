"""Numba: sees the limit, is refused there with the driver's own code, and copies afterwards.

Kernels are compiled only where the driver runs them, which the simulated one does not.
"""

import os

import witness

numba_cuda = witness.needs("numba.cuda")
numpy = witness.needs("numpy")
driver = witness.needs("numba.cuda.cudadrv.driver")
errors = witness.needs("numba.cuda.cudadrv.error")
try:
    total = numba_cuda.current_context().get_memory_info().total
except errors.CudaSupportError as error:
    witness.leave_out(f"numba sees no card ({error})")



def take(size):
    return numba_cuda.device_array(size, dtype=numpy.uint8)


held, refusal = witness.take_until_refused(take, (driver.CudaAPIError, MemoryError))
count = len(held)
held.clear()
numba_cuda.current_context().deallocations.clear()

sent = numpy.arange(1 << 20, dtype=numpy.float32)
on_card = numba_cuda.to_device(sent)
assert (on_card.copy_to_host() == sent).all()

remark = ""
if os.environ.get("GPU_TIER_SIM"):
    remark = "no kernel: the simulated driver runs none"
else:

    @numba_cuda.jit
    def double(numbers):
        place = numba_cuda.grid(1)
        if place < numbers.size:
            numbers[place] *= 2

    double[(sent.size + 255) // 256, 256](on_card)
    assert (on_card.copy_to_host() == sent * 2).all()
witness.say(total, count, refusal, remark=remark)
