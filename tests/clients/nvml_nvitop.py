"""nvitop as a client: its library and its screen show every card.

Runs on any driver, simulated or real. `--expect-total MIB` says how large each card must look.
"""

import argparse
import os
import subprocess
import sys

from nvitop import NA, Device, GpuProcess

MIB = 1 << 20


def check_library(expect_total):
    cards = Device.all()
    assert cards and Device.count() == len(cards)
    assert Device.driver_version() != NA and Device.cuda_driver_version() != NA
    for card in cards:
        assert card.name() != NA and card.uuid().startswith("GPU-")
        total, used, free = card.memory_total(), card.memory_used(), card.memory_free()
        assert used + free <= total, (used, free, total)
        assert 0 <= card.memory_percent() <= 100
        assert card.gpu_utilization() in range(101)
        assert card.temperature() != NA and card.power_usage() != NA
        assert card.bus_id() != NA and card.cuda_compute_capability() != NA
        card.fan_speed(), card.mig_mode(), card.total_volatile_uncorrected_ecc_errors()
        if expect_total is not None:
            assert total == expect_total * MIB, (total // MIB, expect_total)
        for pid, process in card.processes().items():
            assert isinstance(process, GpuProcess) and pid == process.pid
    return cards


def check_screen(cards, expect_total):
    environment = dict(os.environ, COLUMNS="160", LINES="60", TERM="xterm")
    screen = subprocess.run(
        [sys.executable, "-m", "nvitop", "--once", "--no-unicode"],
        env=environment, capture_output=True, text=True, timeout=60, check=True,
    ).stdout
    assert Device.driver_version() in screen, screen
    for card in cards:
        assert card.bus_id().upper() in screen.upper(), screen
    if expect_total is not None:
        assert f"{cards[0].memory_total_human()}" in screen, screen


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expect-total", type=int, metavar="MIB")
    arguments = parser.parse_args()
    cards = check_library(arguments.expect_total)
    check_screen(cards, arguments.expect_total)
    print(f"OK nvitop: {len(cards)} cards, {cards[0].memory_total_human()} each")


if __name__ == "__main__":
    main()
