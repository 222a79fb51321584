"""cuda-core as a client: devices, streams, buffers and memory resources.

Runs on any driver, simulated or real, with a limit or without. `--expect-total MIB` says how large
the first card must look.
"""

import argparse
import ctypes

from cuda.bindings import driver as cu
from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions
from cuda.core import LegacyPinnedMemoryResource

MIB = 1 << 20


def memory():
    status, free, total = cu.cuMemGetInfo()
    assert status == cu.CUresult.CUDA_SUCCESS, status
    return free, total


def check_buffers(device, stream):
    before = memory()[0]
    buffer = device.allocate(16 * MIB, stream=stream)
    assert buffer.size == 16 * MIB and buffer.is_device_accessible
    assert before - memory()[0] >= 16 * MIB
    pinned = LegacyPinnedMemoryResource().allocate(MIB)
    ctypes.memset(int(pinned.handle), 7, MIB)
    part = device.allocate(MIB, stream=stream)
    pinned.copy_to(part, stream=stream)
    back = LegacyPinnedMemoryResource().allocate(MIB)
    part.copy_to(back, stream=stream)
    stream.sync()
    assert ctypes.string_at(int(back.handle), MIB) == bytes([7]) * MIB
    for each in (buffer, part, pinned, back):
        each.close(stream)
    stream.sync()


def check_own_pool(device, stream):
    before = memory()[0]
    pool = DeviceMemoryResource(device, options=DeviceMemoryResourceOptions(max_size=256 * MIB))
    buffer = pool.allocate(40 * MIB, stream=stream)
    assert pool.attributes.used_mem_current == 40 * MIB
    assert pool.attributes.reserved_mem_current >= 40 * MIB
    assert before - memory()[0] >= 40 * MIB
    try:
        pool.allocate(512 * MIB, stream=stream)
    except Exception as error:
        assert "OUT_OF_MEMORY" in str(error).upper().replace(" ", "_"), error
    else:
        raise AssertionError("a pool gave more than it may hold")
    buffer.close(stream)
    stream.sync()
    pool.close()
    assert memory()[0] == before


def check_events(device, stream):
    start = stream.record(options={"timing_enabled": True})
    end = stream.record(options={"timing_enabled": True})
    end.sync()
    assert end.is_done and end - start >= 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--expect-total", type=int)
    arguments = parser.parse_args()
    device = Device()
    device.set_current()
    assert device.name and device.compute_capability.major >= 5
    assert len(device.uuid) == 36
    assert device.properties.multiprocessor_count > 0
    if arguments.expect_total is not None:
        assert memory()[1] == arguments.expect_total * MIB, memory()
    stream = device.create_stream()
    check_buffers(device, stream)
    check_own_pool(device, stream)
    check_events(device, stream)
    stream.close()
    print("OK cuda-core")


main()
