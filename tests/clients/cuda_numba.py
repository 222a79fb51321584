"""numba-cuda as a client: device arrays, streams, events and contexts.

Runs on any driver, simulated or real, with a limit or without; compiles nothing. `--expect-total MIB`
says how large the first card must look.
"""

import argparse

import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

MIB = 1 << 20


def check_arrays():
    numbers = np.arange(MIB, dtype=np.float32)
    on_device = cuda.to_device(numbers)
    assert (on_device.copy_to_host() == numbers).all()
    part = on_device[1000:2000]
    assert (part.copy_to_host() == numbers[1000:2000]).all()
    empty = cuda.device_array_like(on_device)
    empty.copy_to_device(on_device)
    assert (empty.copy_to_host() == numbers).all()


def check_streams():
    stream = cuda.stream()
    numbers = cuda.pinned_array(MIB, dtype=np.uint8)
    numbers[:] = 3
    start, end = cuda.event(), cuda.event()
    start.record(stream)
    on_device = cuda.to_device(numbers, stream=stream)
    end.record(stream)
    back = on_device.copy_to_host(stream=stream)
    stream.synchronize()
    end.synchronize()
    assert (back == 3).all()
    assert cuda.event_elapsed_time(start, end) >= 0


def check_memory(expect_total):
    context = cuda.current_context()
    before = context.get_memory_info()
    if expect_total is not None:
        assert before.total == expect_total * MIB, (before.total // MIB, expect_total)
    held = cuda.device_array(32 * MIB, dtype=np.uint8)
    assert before.free - context.get_memory_info().free == 32 * MIB
    try:
        cuda.device_array(before.total + MIB, dtype=np.uint8)
    except CudaAPIError as error:
        assert error.code == 2, error
    else:
        raise AssertionError("more than the card was allocated")
    del held
    context.memory_manager.deallocations.clear()
    assert context.get_memory_info().free == before.free


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--expect-total", type=int)
    arguments = parser.parse_args()
    assert len(cuda.gpus) >= 1
    check_memory(arguments.expect_total)
    check_arrays()
    check_streams()
    cuda.close()
    print("OK numba-cuda")


main()
