"""What a share costs: the same work without one and with one, in turn, as ratios of medians.

The quantities are those of GPU-Virt-Bench (their public definitions, measured by programs of our own), and a
training step of PyTorch. Where --hami-core names its library, the same work runs under it, too.
"""

import statistics
import sys

from tier.frameworks import LEFT_OUT, PROGRAMS, answer
from tier.machine import Share
from tier.table import Result

SHARE_MIB = 8192
ROUNDS = {"calls": 5, "training": 3}


class Side:
    """Under what a program is measured."""

    def __init__(self, name, share=None, environment=None):
        self.name = name
        self.share = share
        self.environment = environment or {}
        self.samples = {}

    def add(self, said):
        for what, value in said.items():
            self.samples.setdefault(what, []).append(value)

    def middle(self, what):
        return statistics.median(self.samples[what]) if self.samples.get(what) else None


def sides(machine):
    """Nothing, us, and HAMi-core where it is named."""
    found = [Side("plain"), Side("apportion", Share(mib=SHARE_MIB))]
    if machine.hami_core:
        environment = {
            "LD_PRELOAD": str(machine.hami_core),
            "CUDA_DEVICE_MEMORY_LIMIT": f"{SHARE_MIB}m",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(machine.scratch / "hami-core.cache"),
            "LIBCUDA_LOG_LEVEL": "0",
        }
        found.append(Side("hami-core", environment=environment))
    return found


def calls(machine, name):
    program = machine.programs / "apportion-bench"
    if not program.exists():
        result = Result(name)
        result.left_out = f"{program.name} is not built"
        return result
    return paired(machine, name, [program, "--worker", "metrics"], ROUNDS["calls"], 25)


def accuracy(machine, name):
    """IS-001: how near to its limit NVML sees a program that fills it in small pieces."""
    result, said = Result(name), []
    for side in sides(machine)[1:]:
        options = {"share": side.share, "timeout": 40, "environment": side.environment}
        script = "fill 64M fill 2M fill 64K\ntotal"
        outcome = machine.run(f"{name} {side.name}", [machine.programs / "victim", "-"], says=script, **options)
        if outcome is None:
            return Result.of(name, None)
        if outcome.status != 0:
            result.trouble.append(f"{side.name}: {outcome.last_words}")
            continue
        if side.share:
            result.note(outcome.seen, True)
        result.seconds = (result.seconds or 0) + outcome.seconds
        peak = outcome.seen.get("peak", 0)
        said.append(f"{side.name} {peak / (SHARE_MIB << 20):.2%}")
        result.more[side.name] = peak
    result.remark = f"({', '.join(said)} of the limit)"
    return result


def training(machine, name):
    return paired(machine, name, [sys.executable, PROGRAMS / "training_step.py"], ROUNDS["training"], 40)


def paired(machine, name, command, rounds, timeout):
    """Runs a program in turn on all sides, with nobody asking NVML meanwhile; what there is no time for is left out."""
    result, all_sides = Result(name), sides(machine)
    # The simulated driver shows that it works, and no more.
    rounds, done = (2 if machine.sim else rounds), 0
    for turn in range(rounds):
        # Every other round begins with another side, so that what drifts disturbs all alike.
        for side in all_sides if turn % 2 == 0 else reversed(all_sides):
            options = {"share": side.share, "timeout": timeout, "environment": side.environment, "watched": False}
            outcome = machine.run(f"{name} {side.name} {turn}", command, **options)
            if outcome is None:
                break
            if outcome.status == LEFT_OUT:
                return result.leave_out(outcome.last_words)
            said = answer(outcome)
            if outcome.status != 0 or said is None:
                result.trouble.append(f"{side.name}: {outcome.last_words}")
                break
            result.seconds = (result.seconds or 0) + outcome.seconds
            # A worker of apportion-bench says what kind of answer it is.
            side.add(said.get("Metrics", said))
        else:
            done += 1
            continue
        break
    if done == 0 and not result.trouble:
        return Result.of(name, None)
    result.more["rounds"] = done
    result.more["samples"] = {side.name: side.samples for side in all_sides}
    result.remark = "; ".join(_ratios(all_sides))
    return result


def _ratios(all_sides):
    plain, *others = all_sides
    said = []
    for what in plain.samples:
        before = plain.middle(what)
        if not before:
            continue
        middles = [(side.name, side.middle(what)) for side in others]
        ratios = [f"{name} {value / before:.2f}x" for name, value in middles if value is not None]
        said.append(f"{what} {_time(before)}: {', '.join(ratios)}")
    return said


def _time(nanoseconds):
    for unit, size in (("ns", 1), ("us", 1e3), ("ms", 1e6)):
        if nanoseconds < 1000 * size:
            break
    return f"{nanoseconds / size:.3g} {unit}"

