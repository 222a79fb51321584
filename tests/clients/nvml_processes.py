"""The two libraries of one driver agree: what a CUDA program takes is what NVML says it has.

The program under test is this one, through the driver's C interface; nvidia-ml-py is the witness. Runs on
any driver, simulated or real, in the host's PID namespace and without a limit.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

import pynvml as nvml

MIB = 1 << 20
ASKED = 100 * MIB
SLACK = 8 * MIB


class Cuda:
    """Enough of the driver's interface to hold memory on a card."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)

    def __call__(self, function, *arguments):
        code = getattr(self.driver, function)(*arguments)
        assert code == 0, f"{function}: error {code}"

    def allocate(self, size):
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def bus_id(self):
        text = ctypes.create_string_buffer(32)
        self("cuDeviceGetPCIBusId", text, len(text), 0)
        return text.value.decode()


def used_by(card, pid):
    """What the process has on the card; None if it is not there. The lists must agree."""
    lists = [
        {process.pid: process.usedGpuMemory for process in listing(card)}
        for listing in (
            nvml.nvmlDeviceGetComputeRunningProcesses_v2,
            nvml.nvmlDeviceGetComputeRunningProcesses_v3,
        )
    ]
    assert lists[0].get(pid) == lists[1].get(pid)
    return lists[0].get(pid)


def within(seconds, condition):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "still not so"
        time.sleep(0.01)


def check_own_memory(cuda, card):
    context = used_by(card, os.getpid())
    assert context and context >= MIB, "a context takes memory"
    address = cuda.allocate(ASKED)
    taken = used_by(card, os.getpid()) - context
    assert ASKED <= taken <= ASKED + SLACK, taken
    cuda("cuMemFree_v2", address)
    assert used_by(card, os.getpid()) <= context + SLACK


def check_killed_child(card):
    """A killed process gives all of its memory back."""
    before = nvml.nvmlDeviceGetMemoryInfo(card).used
    child = subprocess.Popen(
        [sys.executable, __file__, "hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"held\n"
    assert used_by(card, child.pid) > ASKED
    assert nvml.nvmlDeviceGetMemoryInfo(card).used >= before + ASKED
    assert "hold" in nvml.nvmlSystemGetProcessName(child.pid)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    within(5, lambda: used_by(card, child.pid) is None)
    within(5, lambda: nvml.nvmlDeviceGetMemoryInfo(card).used <= before + SLACK)


def hold():
    Cuda().allocate(ASKED)
    print("held", flush=True)
    sys.stdin.read()


def main():
    if sys.argv[1:] == ["hold"]:
        return hold()
    nvml.nvmlInit()
    cuda = Cuda()
    card = nvml.nvmlDeviceGetHandleByPciBusId(cuda.bus_id())
    check_own_memory(cuda, card)
    check_killed_child(card)
    context = used_by(card, os.getpid()) // MIB
    print(f"OK processes: a context takes {context} MiB, a killed process nothing")


if __name__ == "__main__":
    main()
