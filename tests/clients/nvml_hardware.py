"""nvidia-ml-py as a witness of what happens to simulated hardware: errors, load, loss, limits.

Needs the simulated driver and its daemon's program: `--simd PATH`. On a driver like R615 that runs as
root, `--cgroup FOLDER` also checks the driver's own memory limits, in a group of that folder.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys

import pynvml as nvml

from nvml_processes import Cuda
from nvml_pynvml import expect_refusal

MIB = 1 << 20


class Hardware:
    """The simulated hardware, moved from outside."""

    def __init__(self, simd):
        self.simd = simd

    def ask(self, request):
        asked = [self.simd, "--ask", json.dumps(request)]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
        return json.loads(answer.stdout)

    def control(self, **control):
        assert self.ask({"Nvml": {"Control": control}}) == {"Nvml": "Done"}


def check_events(hardware, cards):
    events = nvml.nvmlEventSetCreate()
    hardware.control(Xid={"card": 0, "xid": 13})
    for card in cards:
        nvml.nvmlDeviceRegisterEvents(card, nvml.nvmlEventTypeXidCriticalError, events)
    expect_refusal(nvml.NVML_ERROR_TIMEOUT, nvml.nvmlEventSetWait_v2, events, 1)
    for xid in (31, 43):
        hardware.control(Xid={"card": len(cards) - 1, "xid": xid})
    for xid in (31, 43):
        event = nvml.nvmlEventSetWait_v2(events, 2000)
        assert event.eventData == xid and event.eventType == nvml.nvmlEventTypeXidCriticalError
        assert nvml.nvmlDeviceGetIndex(event.device) == len(cards) - 1
    expect_refusal(nvml.NVML_ERROR_TIMEOUT, nvml.nvmlEventSetWait_v2, events, 1)
    nvml.nvmlEventSetFree(events)
    expect_refusal(nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.nvmlEventSetWait_v2, events, 1)


def check_load(hardware, card):
    idle = nvml.nvmlDeviceGetPowerUsage(card)
    busy = {"gpu": 80, "memory": 30, "encoder": 5, "decoder": 6}
    hardware.control(Utilisation={"card": 0, "utilisation": busy})
    rates = nvml.nvmlDeviceGetUtilizationRates(card)
    assert (rates.gpu, rates.memory) == (80, 30)
    assert nvml.nvmlDeviceGetEncoderUtilization(card)[0] == 5
    assert nvml.nvmlDeviceGetPowerUsage(card) > idle
    hardware.control(Utilisation={"card": 0, "utilisation": dict.fromkeys(busy, 0)})


def check_loss(hardware, card):
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(card, nvml.nvmlEventTypeXidCriticalError, events)
    hardware.control(Xid={"card": 0, "xid": 79})
    hardware.control(Lost={"card": 0, "lost": True})
    assert nvml.nvmlEventSetWait_v2(events, 2000).eventData == 79
    lost = nvml.NVML_ERROR_GPU_IS_LOST
    expect_refusal(lost, nvml.nvmlEventSetWait_v2, events, 2000)
    expect_refusal(lost, nvml.nvmlDeviceGetMemoryInfo, card)
    expect_refusal(lost, nvml.nvmlDeviceGetHandleByIndex, 0)
    hardware.control(Lost={"card": 0, "lost": False})
    nvml.nvmlEventSetFree(events)

    hardware.control(MemoryInfo={"card": 0, "supported": False})
    expect_refusal(nvml.NVML_ERROR_NOT_SUPPORTED, nvml.nvmlDeviceGetMemoryInfo, card)
    hardware.control(MemoryInfo={"card": 0, "supported": True})
    nvml.nvmlDeviceGetMemoryInfo(card)


def check_rules(hardware, card):
    rule = {"function": "nvmlDeviceGetMemoryInfo", "nth": 2, "effect": {"error": 999}}
    assert hardware.ask({"AddRule": rule}) == "Done", "the rule is in force"
    nvml.nvmlDeviceGetMemoryInfo(card)
    expect_refusal(nvml.NVML_ERROR_UNKNOWN, nvml.nvmlDeviceGetMemoryInfo, card)
    nvml.nvmlDeviceGetMemoryInfo(card)
    hardware.ask("ClearRules")


class SetLimits(ctypes.Structure):
    _fields_ = [("folder", ctypes.c_char_p), ("soft", ctypes.c_ulonglong),
                ("hard", ctypes.c_ulonglong)]


class GetLimits(ctypes.Structure):
    _fields_ = [*SetLimits._fields_, ("used", ctypes.c_ulonglong)]


def set_limits(card, folder, soft, hard):
    call = nvml._nvmlGetFunctionPointer("nvmlDeviceSetMemoryLimits_v1")
    nvml._nvmlCheckReturn(call(card, ctypes.byref(SetLimits(folder.encode(), soft, hard))))


def get_limits(card, folder):
    limits = GetLimits(folder.encode())
    call = nvml._nvmlGetFunctionPointer("nvmlDeviceGetMemoryLimits_v1")
    nvml._nvmlCheckReturn(call(card, ctypes.byref(limits)))
    return limits


def check_no_limits(card):
    expect_refusal(nvml.NVML_ERROR_NOT_SUPPORTED, set_limits, card, "/sys/fs/cgroup", 0, MIB)


def check_limits(card, parent):
    folder = os.path.join(parent, f"nvml-{os.getpid()}")
    os.mkdir(folder)
    no_limit = 2**64 - 1
    total = nvml.nvmlDeviceGetMemoryInfo(card).total
    try:
        expect_refusal(nvml.NVML_ERROR_NOT_FOUND, get_limits, card, folder)
        expect_refusal(nvml.NVML_ERROR_INVALID_ARGUMENT, set_limits, card, folder, 2, 1)
        expect_refusal(nvml.NVML_ERROR_INVALID_ARGUMENT, set_limits, card, folder, 0, total + 1)
        expect_refusal(nvml.NVML_ERROR_OPERATING_SYSTEM, set_limits, card, "/nowhere", 0, MIB)
        set_limits(card, folder, 0, 1000 * MIB)
        found = get_limits(card, folder)
        assert (found.soft, found.hard, found.used) == (0, 1000 * MIB, 0)
        assert memory(card) == [total, memory(card)[1]], "outside the group the card is whole"
        assert memory_inside(folder) == [1000 * MIB, 1000 * MIB]
        assert taken_inside(folder) == [500, 2, 1000 * MIB]
        set_limits(card, folder, 0, no_limit)
        assert memory_inside(folder) == memory(card)
        expect_refusal(nvml.NVML_ERROR_NOT_FOUND, get_limits, card, folder)
    finally:
        os.rmdir(folder)


def memory(card):
    seen = nvml.nvmlDeviceGetMemoryInfo(card, version=nvml.nvmlMemory_v2)
    return [seen.total, seen.free]


def memory_inside(folder):
    """What a program in the group sees of the first card."""
    return answer_inside(folder, "h.memory(h.nvml.nvmlDeviceGetHandleByIndex(0))")


def taken_inside(folder):
    """What a CUDA program in the group can take of 500 MiB and of as much again."""
    return answer_inside(folder, "h.take()")


def take():
    cuda = Cuda()
    cuda.allocate(500 * MIB)
    address, free, total = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
    refused = cuda.driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(500 * MIB))
    cuda("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert free.value < 500 * MIB and address.value == 0
    return [500, refused, total.value]


def answer_inside(folder, question):
    def enter():
        with open(os.path.join(folder, "cgroup.procs"), "w", encoding="ascii") as members:
            members.write("0")

    program = f"import nvml_hardware as h; h.nvml.nvmlInit(); print(h.json.dumps({question}))"
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=os.path.dirname(os.path.abspath(__file__)),
        preexec_fn=enter, stdout=subprocess.PIPE, text=True, timeout=20, check=True,
    )
    return json.loads(answer.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simd", required=True, metavar="PATH")
    parser.add_argument("--cgroup", metavar="FOLDER")
    arguments = parser.parse_args()
    hardware = Hardware(arguments.simd)

    nvml.nvmlInit()
    driver, count = nvml.nvmlSystemGetDriverVersion(), nvml.nvmlDeviceGetCount()
    cards = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    check_events(hardware, cards)
    check_load(hardware, cards[0])
    check_loss(hardware, cards[0])
    check_rules(hardware, cards[0])
    has_limits = int(driver.split(".")[0]) >= 615
    if not has_limits:
        check_no_limits(cards[0])
    elif arguments.cgroup:
        check_limits(cards[0], arguments.cgroup)
    nvml.nvmlShutdown()
    print(f"OK hardware: {count} cards, driver {driver}, limits {has_limits}")


if __name__ == "__main__":
    main()
