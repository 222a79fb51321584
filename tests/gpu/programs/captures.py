"""Captures of a stream into a graph, while this and another thread ask about memory and free some.

What CUDA makes of each situation is not judged here: the row compares it with the same program without a
share. Some of them spoil a capture on a driver alone.
"""

import json
import threading

import witness

torch = witness.needs("torch")
if not torch.cuda.is_available():
    witness.leave_out("torch sees no card")


def capture(beside, mode="global"):
    """Captures an addition while `beside` runs in another thread; how it ended."""
    numbers = torch.zeros(1 << 20, device="cuda")
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        numbers.add_(1)
    torch.cuda.synchronize()
    numbers.zero_()
    graph, capturing, done, said = torch.cuda.CUDAGraph(), threading.Event(), threading.Event(), []

    def other():
        capturing.wait(10)
        try:
            beside()
        except Exception as error:
            said.append(f"the other thread: {type(error).__name__}")
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    try:
        with torch.cuda.graph(graph, capture_error_mode=mode):
            numbers.add_(1)
            capturing.set()
            done.wait(10)
            numbers.add_(1)
        numbers.zero_()
        graph.replay()
        torch.cuda.synchronize()
        said.append("replayed" if float(numbers.sum()) == 2 * (1 << 20) else "computed wrongly")
    except Exception as error:
        said.append(type(error).__name__)
    finally:
        capturing.set()
        thread.join()
    torch.cuda.synchronize()
    return ", ".join(said)


def properties():
    torch.cuda.get_device_properties(0)
    try:
        torch.cuda.device_memory_used(0)
    except (AttributeError, ImportError):
        # An older PyTorch, or one without nvidia-ml-py.
        pass


class Driver:
    """Stream-ordered memory by the driver itself, which PyTorch would keep in its cache."""

    def __init__(self):
        import ctypes

        self.ctypes, self.cuda = ctypes, ctypes.CDLL("libcuda.so.1")
        self.held = self.take()

    def take(self):
        address = self.ctypes.c_uint64()
        self.cuda.cuMemAllocAsync(self.ctypes.byref(address), self.ctypes.c_size_t(4 << 20), None)
        return address

    def turn_over(self):
        """Frees and takes in the order of the default stream, where a pool is asked for its size."""
        self.cuda.cuMemFreeAsync(self.held, None)
        self.held = self.take()


torch.zeros(1, device="cuda")
driver = Driver()
torch.cuda.synchronize()
ends = {}
for mode in ("global", "thread_local", "relaxed"):
    ends[f"nothing beside, {mode}"] = capture(lambda: None, mode)
    ends[f"cuMemGetInfo beside, {mode}"] = capture(lambda: torch.cuda.mem_get_info(), mode)
    ends[f"properties and NVML beside, {mode}"] = capture(properties, mode)
    ends[f"cuMemAllocAsync and cuMemFreeAsync beside, {mode}"] = capture(driver.turn_over, mode)
print(json.dumps(ends))
