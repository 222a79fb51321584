"""Numba: arrays until the driver refuses, copies, and a compiled kernel.

What a kernel computes is looked at only where the driver runs it; the simulated one does not.
"""

import gc
import os

from checks import MIB, check, end, equal, figure, fills_twice, section, sees_the_card

import numba_cuda
import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError


@cuda.jit
def double(numbers):
    place = cuda.grid(1)
    if place < numbers.size:
        numbers[place] *= 2


def take(size):
    return cuda.device_array(size, dtype=numpy.uint8)


def release():
    gc.collect()
    cuda.current_context().memory_manager.deallocations.clear()


def sizes():
    sees_the_card(get_memory_info=cuda.current_context().get_memory_info().total)


def out_of_memory():
    fills_twice("fills the card", take, (CudaAPIError, MemoryError), release)


def copies():
    sent = numpy.arange(MIB, dtype=numpy.float32)
    equal("an array goes to the card and back", bool((cuda.to_device(sent).copy_to_host() == sent).all()), True)


def kernel():
    numbers = numpy.arange(MIB, dtype=numpy.float32)
    on_card = cuda.to_device(numbers)
    double[(numbers.size + 255) // 256, 256](on_card)
    cuda.synchronize()
    check("a kernel is compiled and launched", len(double.signatures) == 1)
    if os.environ.get("KERNELS_COMPUTE"):
        equal("and computes", bool((on_card.copy_to_host() == numbers * 2).all()), True)


figure("version", numba_cuda.__version__)
for part in (sizes, out_of_memory, copies, kernel, sizes):
    with section(part.__name__):
        part()
    release()
end()
