"""cuda-core as a client of NVML: its view of the system agrees with nvidia-ml-py's.

Runs on any driver, simulated or real. `--expect-total MIB` says how large each card must look.
"""

import argparse

import pynvml as nvml
from cuda.core import system

MIB = 1 << 20


def check_card(card, expect_total):
    witness = nvml.nvmlDeviceGetHandleByIndex(card.index)
    assert card.uuid == nvml.nvmlDeviceGetUUID(witness)
    assert card.name == nvml.nvmlDeviceGetName(witness)
    assert card.pci_info.bus_id == nvml.nvmlDeviceGetPciInfo(witness).busId
    assert tuple(card.cuda_compute_capability) == nvml.nvmlDeviceGetCudaComputeCapability(witness)
    memory, second = card.memory_info, nvml.nvmlDeviceGetMemoryInfo(witness, nvml.nvmlMemory_v2)
    assert (memory.total, memory.reserved) == (second.total, second.reserved)
    if expect_total is not None:
        assert memory.total == expect_total * MIB, (memory.total // MIB, expect_total)
    assert card.utilization.gpu in range(101)
    assert card.temperature.get_sensor() < 110
    assert isinstance(card.compute_running_processes, list)
    assert card.get_cpu_affinity()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expect-total", type=int, metavar="MIB")
    arguments = parser.parse_args()
    nvml.nvmlInit()
    cards = list(system.Device.get_all_devices())
    assert len(cards) == system.get_num_devices() == nvml.nvmlDeviceGetCount()
    for card in cards:
        check_card(card, arguments.expect_total)
    driver = ".".join(str(part) for part in system.get_kernel_mode_driver_version())
    assert [int(part) for part in driver.split(".")] == [
        int(part) for part in nvml.nvmlSystemGetDriverVersion().split(".")
    ]
    print(f"OK cuda-core: {len(cards)} cards, driver {driver}")


if __name__ == "__main__":
    main()
