"""PyCUDA: memory until the driver refuses, the same through its memory pool, copies, and memory of streams."""

import gc
import os
import sys

from checks import CARD, MIB, check, end, equal, figure, fills_twice, section, sees_the_card

import numpy
import pycuda

# PyCUDA is linked with functions of the driver that the simulated one lacks: for texture and surface references, for
# linking kernels, for profilers and for launches before CUDA 4. Bound when they are called, they are not missed.
sys.setdlopenflags(os.RTLD_LAZY)
import pycuda.driver as driver
from pycuda.tools import DeviceMemoryPool

driver.init()
context = driver.Device(0).make_context()
pool = DeviceMemoryPool()


def release():
    gc.collect()
    pool.free_held()


def sizes():
    free, total = driver.mem_get_info()
    sees_the_card(mem_get_info=total, total_memory=driver.Device(0).total_memory())
    check("what is free is less than the card", 0 < free < total, free)


def out_of_memory():
    before, _ = driver.mem_get_info()
    fills_twice("fills the card", driver.mem_alloc, driver.MemoryError, release)
    equal("all of it is free again", driver.mem_get_info()[0], before)


def pools():
    fills_twice("fills the card through a pool", pool.allocate, driver.MemoryError, release)
    before, _ = driver.mem_get_info()
    held = pool.allocate(CARD // 8)
    del held
    gc.collect()
    check("a pool keeps what was freed", driver.mem_get_info()[0] <= before - CARD // 8 and pool.held_blocks == 1)
    release()
    equal("until it is told to free it", driver.mem_get_info()[0], before)


def pitched():
    memory, pitch = driver.mem_alloc_pitch(1000, 1000, 4)
    check("memory with a pitch", pitch >= 1000, pitch)
    memory.free()


def copies():
    sent = numpy.arange(MIB, dtype=numpy.float32)
    memory = driver.to_device(sent)
    equal("an array goes to the card and back", bool((driver.from_device_like(memory, sent) == sent).all()), True)
    stream, page_locked = driver.Stream(), driver.pagelocked_empty(MIB, numpy.float32)
    driver.memcpy_dtoh_async(page_locked, memory, stream)
    stream.synchronize()
    equal("and by a stream into page-locked memory", bool((page_locked == sent).all()), True)
    driver.memset_d32(memory, 7, MIB)
    equal("and is set", bool((driver.from_device(memory, MIB, numpy.uint32) == 7).all()), True)


figure("version", pycuda.VERSION_TEXT)
for part in (sizes, out_of_memory, pools, pitched, copies, out_of_memory, sizes):
    with section(part.__name__):
        part()
    release()
pool.stop_holding()
context.pop()
end()
