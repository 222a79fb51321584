"""Programs of PyTorch, JAX, CuPy, Numba, Triton and the CUDA runtime, each under a share."""

import json
import pathlib
import shutil
import sys

from tier.machine import MIB, Share
from tier.table import Result

PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "programs"
# Frameworks load megabytes of kernels and workspaces before the first tensor.
SHARE = Share(mib=8192)
# What a program ends with when what it needs is not installed.
LEFT_OUT = 77

# Who is most used comes first. A name, a program, and what is in its environment.
FIRST = [("pytorch", "pytorch.py", {})]
OTHERS = [
    ("jax", "jax_arrays.py", {}),
    ("cupy", "cupy_arrays.py", {}),
    ("triton", "triton_kernel.py", {}),
    ("numba", "numba_arrays.py", {}),
]
VARIANTS = [
    ("pytorch expandable", "pytorch.py", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    ("pytorch async", "pytorch.py", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    ("pytorch processes", "pytorch_processes.py", {}),
    ("cupy async", "cupy_arrays.py", {"GPU_TIER_ASYNC": "1"}),
    ("jax platform", "jax_arrays.py", {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
    ("jax async", "jax_arrays.py", {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}),
    ("jax growing", "jax_arrays.py", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
]
FRACTIONS = [0.7, 0.2]


def rows(table):
    return [(name, framework(program, environment)) for name, program, environment in table]


def framework(program, environment, share=SHARE):
    """A program says what it saw as one line of JSON, its last."""

    def row(machine, name):
        options = {"share": share, "timeout": 60, "environment": environment}
        outcome = machine.run(name, [sys.executable, PROGRAMS / program], **options)
        return judge(name, outcome)

    return row


def judge(name, outcome):
    result = Result.of(name, outcome, True)
    if not result.is_begun:
        return result
    if outcome.status == LEFT_OUT:
        return result.leave_out(outcome.last_words)
    said = answer(outcome)
    if outcome.status != 0 or said is None:
        result.trouble.append(outcome.last_words)
        return result
    result.sees, result.refused = said["sees"], said["refused_at"]
    result.remark = f"({said['remark']})" if said.get("remark") else ""
    if result.sees != result.limit:
        result.trouble.append("sees another size than its limit")
    if not said["refusal"]:
        result.trouble.append("was never refused")
    if result.limit and said["refused_at"] > result.limit:
        result.trouble.append("refused only above the limit")
    if result.limit and said["refused_at"] < result.limit // 2:
        result.trouble.append("refused below half of the limit")
    return result


def answer(outcome):
    """The JSON of the last line that is any."""
    for line in reversed(outcome.output.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None


def two_at_once(machine, name):
    """Two PyTorch programs fill their shares of one card at the same time."""
    command = [sys.executable, PROGRAMS / "pytorch.py"]
    begun = [
        machine.begin(f"{name} {fraction}", command, share=Share(fraction=fraction), timeout=70)
        for fraction in FRACTIONS
    ]
    if None in begun:
        machine.give_up(begun)
        return Result.of(name, None)
    return [judge(program.name, machine.finish(program)) for program in begun]


def captures(machine, name):
    """Stream capture beside questions about memory ends under a share as it ends without one."""
    command = [sys.executable, PROGRAMS / "captures.py"]
    plain = machine.run(f"{name} plain", command, timeout=40)
    limited = machine.run(name, command, share=SHARE, timeout=40)
    result = Result.of(name, limited, True)
    if not result.is_begun:
        return result
    if limited.status == LEFT_OUT:
        return result.leave_out(limited.last_words)
    wanted, seen = (answer(outcome) if outcome and outcome.status == 0 else None for outcome in (plain, limited))
    result.more |= {"plain": wanted, "with": seen}
    if seen is None:
        result.trouble.append(limited.last_words)
    elif wanted is None:
        result.trouble.append("it failed without a share")
    for situation, end in (seen or {}).items():
        if wanted and end != wanted.get(situation):
            result.trouble.append(f"{situation}: {end} instead of {wanted.get(situation)}")
    result.remark = f"({len(seen or {})} situations as without a share)"
    return result


def nvidia_smi(machine, name):
    """nvidia-smi shows the limit as the card's memory."""
    if machine.sim or not shutil.which("nvidia-smi"):
        result = Result(name)
        result.left_out = "nvidia-smi does not run on the simulated driver" if machine.sim else "it is not installed"
        return result
    words = ["nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]
    outcome = machine.run(name, words, share=SHARE, timeout=20)
    result = Result.of(name, outcome, True)
    if not result.is_begun:
        return result
    try:
        result.sees = int(outcome.output.splitlines()[0].split(",")[0]) * MIB
    except (IndexError, ValueError):
        result.trouble.append(outcome.last_words)
    if result.sees != result.limit:
        result.trouble.append("shows another size than the limit")
    return result


def runtime(machine, name):
    """A program of the CUDA runtime, linked statically by nvcc."""
    compiler = shutil.which("nvcc", path=machine.environment.get("PATH", "") + ":/usr/local/cuda/bin")
    if machine.sim or not compiler:
        result = Result(name)
        result.left_out = "the simulated driver runs no kernels" if machine.sim else "nvcc is not installed"
        return result
    program = machine.scratch / "runtime"
    words = [compiler, "-o", program, PROGRAMS / "runtime.cu"]
    made = machine.run(f"{name} compiled", words, timeout=40)
    if made is None or made.status != 0:
        result = Result.of(name, made)
        result.trouble += [made.last_words] if made else []
        return result
    return judge(name, machine.run(name, [program], share=SHARE, timeout=40))
