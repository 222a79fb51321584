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


def check_process(card):
    """A CUDA program on the first card is listed with its memory."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml_processes.py")
    command = [sys.executable, program, "hold"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"held\n"
        process = card.processes()[child.pid]
        assert process.gpu_memory() >= 100 * MIB and process.type == "C"
        assert str(child.pid) in screen()
        child.stdin.close()
    assert child.returncode == 0


def screen():
    environment = dict(os.environ, COLUMNS="160", LINES="60", TERM="xterm")
    return subprocess.run(
        [sys.executable, "-m", "nvitop", "--once", "--no-unicode"],
        env=environment, capture_output=True, text=True, timeout=60, check=True,
    ).stdout


def check_screen(cards, expect_total):
    shown = screen()
    assert Device.driver_version() in shown, shown
    for card in cards:
        assert card.bus_id().upper() in shown.upper(), shown
    if expect_total is not None:
        assert cards[0].memory_total_human() in shown, shown


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expect-total", type=int, metavar="MIB")
    arguments = parser.parse_args()
    cards = check_library(arguments.expect_total)
    check_screen(cards, arguments.expect_total)
    check_process(cards[0])
    print(f"OK nvitop: {len(cards)} cards, {cards[0].memory_total_human()} each")


if __name__ == "__main__":
    main()
