"""PyCUDA: plain allocations, its pools, page-locked memory and streams."""

import gc

from checks import MIB, end, equal, figure, fills_twice, section, sees_the_card

import numpy
import pycuda
import pycuda.autoinit
import pycuda.driver as cuda
import pycuda.tools


def release():
    gc.collect()


def sizes():
    sees_the_card(
        mem_get_info=cuda.mem_get_info()[1], total_memory=pycuda.autoinit.device.total_memory()
    )


def out_of_memory():
    fills_twice("fills the card", cuda.mem_alloc, cuda.MemoryError, release)


def pools():
    pool = pycuda.tools.DeviceMemoryPool()

    def empty():
        gc.collect()
        pool.free_held()

    fills_twice("fills the card from a pool", pool.allocate, cuda.MemoryError, empty)
    pool.stop_holding()


def copies():
    stream = cuda.Stream()
    sent = cuda.pagelocked_empty(MIB, numpy.uint8)
    sent[:] = numpy.arange(MIB, dtype=numpy.uint8)
    back = cuda.pagelocked_empty_like(sent)
    on_card = cuda.mem_alloc(sent.nbytes)
    cuda.memcpy_htod_async(on_card, sent, stream)
    cuda.memcpy_dtoh_async(back, on_card, stream)
    stream.synchronize()
    equal("page-locked memory goes to the card and back", bool((back == sent).all()), True)


figure("version", pycuda.VERSION_TEXT)
for part in (sizes, out_of_memory, pools, copies, sizes):
    with section(part.__name__):
        part()
end()
