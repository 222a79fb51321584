"""nvidia-ml-py as a client: what NVML says of every card hangs together.

Runs on any driver, simulated or real. `--expect-total MIB` says how large each card must look.
"""

import argparse
import os

import pynvml as nvml

MIB = 1 << 20


def expect_refusal(code, call, *arguments):
    try:
        call(*arguments)
    except nvml.NVMLError as error:
        assert error.value == code, f"{call.__name__}: {error} and not {nvml.NVMLError(code)}"
    else:
        raise AssertionError(f"{call.__name__} succeeded and should not")


def supported(call, *arguments):
    """The answer, or None where the card has none to give."""
    try:
        return call(*arguments)
    except nvml.NVMLError_NotSupported:
        return None


def check_memory(card, expect_total):
    first = nvml.nvmlDeviceGetMemoryInfo(card)
    second = nvml.nvmlDeviceGetMemoryInfo(card, version=nvml.nvmlMemory_v2)
    assert first.total == second.total, (first.total, second.total)
    assert second.used <= second.total
    assert abs(first.used + first.free - first.total) < MIB, first
    assert abs(second.used + second.reserved + second.free - second.total) < MIB, second
    if expect_total is not None:
        assert first.total == expect_total * MIB, (first.total // MIB, expect_total)
    assert nvml.nvmlDeviceGetBAR1MemoryInfo(card).bar1Total > 0
    mismatch = nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    expect_refusal(mismatch, nvml.nvmlDeviceGetMemoryInfo, card, 0x02000001)


def check_identity(card, index):
    uuid, pci = nvml.nvmlDeviceGetUUID(card), nvml.nvmlDeviceGetPciInfo(card)
    assert uuid.startswith("GPU-") and len(uuid) == 40, uuid
    assert nvml.nvmlDeviceGetName(card)
    for found in (
        nvml.nvmlDeviceGetHandleByUUID(uuid),
        nvml.nvmlDeviceGetHandleByPciBusId(pci.busId),
        nvml.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy),
    ):
        assert nvml.nvmlDeviceGetIndex(found) == index
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(card)
    assert major >= 5 and minor >= 0
    assert nvml.nvmlDeviceGetArchitecture(card) >= 2
    assert nvml.nvmlDeviceGetMinorNumber(card) >= 0


def check_health(card):
    rates = nvml.nvmlDeviceGetUtilizationRates(card)
    assert 0 <= rates.gpu <= 100 and 0 <= rates.memory <= 100
    assert nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU) < 110
    most = nvml.nvmlDeviceGetMaxClockInfo(card, nvml.NVML_CLOCK_SM)
    assert nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM) <= most
    assert nvml.nvmlDeviceGetEnforcedPowerLimit(card) > 0
    assert nvml.nvmlDeviceGetPowerUsage(card) > 0
    assert supported(nvml.nvmlDeviceGetMigMode, card) in (None, [0, 0], [1, 1])
    assert supported(nvml.nvmlDeviceGetEccMode, card) in (None, [0, 0], [1, 1])
    fields = nvml.nvmlDeviceGetFieldValues(card, [nvml.NVML_FI_DEV_POWER_INSTANT, 1 << 20])
    assert [field.nvmlReturn == nvml.NVML_SUCCESS for field in fields] == [True, False]


def check_processes(card):
    listed = nvml.nvmlDeviceGetComputeRunningProcesses(card)
    assert len({process.pid for process in listed}) == len(listed)
    oldest = nvml.nvmlDeviceGetComputeRunningProcesses_v2(card)
    assert {process.pid for process in oldest} <= {process.pid for process in listed}
    assert os.getpid() not in {process.pid for process in listed}, "NVML alone takes no context"
    assert isinstance(nvml.nvmlDeviceGetGraphicsRunningProcesses(card), list)
    assert isinstance(nvml.nvmlDeviceGetMPSComputeRunningProcesses(card), list)


def check_events(card):
    kinds = nvml.nvmlDeviceGetSupportedEventTypes(card)
    assert kinds & nvml.nvmlEventTypeXidCriticalError
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(card, nvml.nvmlEventTypeXidCriticalError, events)
    expect_refusal(nvml.NVML_ERROR_TIMEOUT, nvml.nvmlEventSetWait_v2, events, 20)
    nvml.nvmlEventSetFree(events)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expect-total", type=int, metavar="MIB")
    arguments = parser.parse_args()

    expect_refusal(nvml.NVML_ERROR_UNINITIALIZED, nvml.nvmlShutdown)
    nvml.nvmlInit()
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    driver, count = nvml.nvmlSystemGetDriverVersion(), nvml.nvmlDeviceGetCount()
    assert nvml.nvmlSystemGetCudaDriverVersion() >= 11000 and driver.split(".")[0].isdigit()
    assert nvml.nvmlSystemGetProcessName(os.getpid())
    for index in range(count):
        card = nvml.nvmlDeviceGetHandleByIndex(index)
        check_identity(card, index)
        check_memory(card, arguments.expect_total)
        check_health(card)
        check_processes(card)
        check_events(card)
    expect_refusal(nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.nvmlDeviceGetHandleByIndex, count)
    expect_refusal(nvml.NVML_ERROR_NOT_FOUND, nvml.nvmlDeviceGetHandleByUUID, "GPU-" + "0" * 36)
    nvml.nvmlShutdown()
    expect_refusal(nvml.NVML_ERROR_UNINITIALIZED, nvml.nvmlDeviceGetCount)
    print(f"OK nvidia-ml-py: {count} cards, driver {driver}")


if __name__ == "__main__":
    main()
