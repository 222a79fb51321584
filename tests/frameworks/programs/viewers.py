"""gpustat, nvitop, nvtop and NVML for Python beside a process that holds memory of the card.

The viewers run as commands, as their users run them, and what they print is read. This program is the process
that holds memory: it takes it by the driver's own calls. nvtop is no package of PyPI: where `TOOL` is its path, it is
looked at, and the others are not.
"""

import ctypes
import fcntl
import importlib.metadata
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

from checks import CARD, CARD_BY_NVML, MIB, check, end, equal, figure, section

# Neither gpustat nor nvitop is imported here: both change NVML for Python.
import pynvml

HELD = CARD // 4 // MIB * MIB
TOOL = os.environ.get("TOOL")
BESIDE_PYTHON = os.path.dirname(sys.executable)
GIB = 1 << 30


def take(size):
    """Takes memory of the card, which stays taken until this program ends."""
    driver = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    for code in (
        driver.cuInit(0),
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        driver.cuCtxSetCurrent(context),
        driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)),
    ):
        assert code == 0, code
    figure("held", size)


def printed(*command):
    """What a command beside Python prints."""
    command = [os.path.join(BESIDE_PYTHON, command[0]), *command[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.returncode}: {done.stderr[-400:]}")
    return done.stdout


def shows(viewer, total, used, unit=1):
    """What a viewer shows must be the card's size, and at least what this program holds."""
    equal(f"{viewer} shows the card's size", total, CARD_BY_NVML)
    check(f"{viewer} shows what is in use", HELD <= used + unit and used <= total, f"{used} of {total} bytes")


def nvml():
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.nvmlDeviceGetMemoryInfo(card)
    figure("sees", memory.total)
    shows("nvidia-ml-py", memory.total, memory.used)
    equal("nvidia-ml-py: free and used are the total", memory.free + memory.used, memory.total)
    second = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    shows("nvidia-ml-py, second version,", second.total, second.used)
    three = second.free + second.used + second.reserved
    equal("nvidia-ml-py, second version: free, used and reserved are the total", three, second.total)
    held = {process.pid: process.usedGpuMemory for process in pynvml.nvmlDeviceGetComputeRunningProcesses(card)}
    own = held.get(os.getpid(), 0)
    check("nvidia-ml-py lists this process and what it holds", own >= HELD, f"{own} of {HELD} bytes")
    equal("nvidia-ml-py lists nobody else", sorted(held), [os.getpid()])
    pynvml.nvmlShutdown()


def by_gpustat():
    (card,) = json.loads(printed("gpustat", "--json"))["gpus"]
    shows("gpustat", card["memory.total"] * MIB, card["memory.used"] * MIB, unit=MIB)
    held = {process["pid"]: process["gpu_memory_usage"] for process in card["processes"]}
    own = held.get(os.getpid(), 0)
    check("gpustat lists this process and what it holds", own >= HELD // MIB, f"{own} of {HELD // MIB} MiB")


def by_nvitop():
    text = printed("nvitop", "--once", "--ascii", "--no-unicode")
    memory = re.search(r"([0-9.]+)MiB / ([0-9.]+)MiB", text)
    assert memory, text
    used, total = (int(float(size) * MIB) for size in memory.groups())
    shows("nvitop", total, used, unit=MIB)
    check("nvitop lists this process", re.search(rf"^\W+0\s+{os.getpid()}\s", text, re.MULTILINE))


def on_a_terminal(command, is_enough, seconds=60):
    """What a full-screen program writes until that is enough; then it is asked to end."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    environment = dict(os.environ, TERM="xterm")
    with subprocess.Popen(command, stdin=there, stdout=there, stderr=there, env=environment) as viewer:
        os.close(there)
        written, end_of_patience = b"", time.monotonic() + seconds
        while not is_enough(written) and viewer.poll() is None and time.monotonic() < end_of_patience:
            if select.select([here], [], [], 0.2)[0]:
                try:
                    written += os.read(here, 1 << 16)
                except OSError:
                    break
        viewer.kill()
    os.close(here)
    return written


def by_nvtop():
    pattern = rb"([0-9.]+)Gi/([0-9.]+)Gi"
    written = on_a_terminal([TOOL, "--no-color"], re.compile(pattern).search)
    memory = re.search(pattern, written)
    assert memory, written[-400:]
    used, total = (float(size) for size in memory.groups())
    # It prints three digits behind the point.
    check("nvtop shows the card's size", abs(total * GIB - CARD_BY_NVML) <= GIB / 1000, f"{total} Gi")
    check("nvtop shows what is in use", used * GIB >= HELD - GIB / 1000, f"{used} Gi")


def versions():
    """The versions of what is looked at."""
    if TOOL:
        return [printed(TOOL, "--version").split()[-1]]
    return [importlib.metadata.version(name) for name in ("gpustat", "nvitop", "nvidia-ml-py")]


figure("version", ", ".join(versions()))
take(HELD)
for part in (by_nvtop,) if TOOL else (nvml, by_gpustat, by_nvitop):
    with section(part.__name__):
        part()
end()
