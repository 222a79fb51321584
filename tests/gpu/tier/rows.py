"""What is run, and what is asked of each."""

import json
import pathlib
import sys

from tier.table import Result

MIB = 1 << 20
PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "programs"
# Frameworks load megabytes of kernels and workspaces before the first tensor.
FRAMEWORK_LIMIT = 8192
VICTIM_LIMIT = 2000
# What a program ends with when what it needs is not installed.
LEFT_OUT = 77

# A name, and what the victim does. Four pieces of 512 MiB never fit, two always do.
PIECE = 512 * MIB
VICTIMS = [
    ("plain", "total fill 64M free 0 alloc 64M"),
    ("90 % of free", "total take 90 free 0 take 90 alloc 500M"),
    ("pitched", "total pitch 512M 1 pitch 512M 1 pitch 512M 1 pitch 512M 1 free 0 pitch 512M 1"),
    ("managed", "total managed 512M managed 512M managed 512M managed 512M free 0 managed 512M"),
    ("virtual memory", "total create 512M create 512M create 512M create 512M free 0 create 512M"),
    ("stream order", "total async 512M async 512M async 512M async 512M free 0 sync async 512M"),
    ("second context", "total context fill 64M uncontext alloc 64M"),
    (
        "second process",
        "total alloc 256M\nspawn alloc 256M\nalloc 512M alloc 512M\nreap\nalloc 512M",
    ),
]

# A name, a program, and what is in its environment. The last four are variants that may be cut for time.
FRAMEWORKS = [
    ("pytorch", "pytorch.py", {}),
    ("jax", "jax_arrays.py", {}),
    ("cupy", "cupy_arrays.py", {}),
    ("numba", "numba_arrays.py", {}),
    ("triton", "triton_kernel.py", {}),
    ("pytorch expandable", "pytorch.py", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    ("pytorch async", "pytorch.py", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    ("cupy async", "cupy_arrays.py", {"GPU_TIER_ASYNC": "1"}),
    ("jax platform", "jax_arrays.py", {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
]


def run(machine, wanted):
    """Runs the rows whose names begin as wanted, or all."""
    rows = [("conformance", conformance), ("conformance limited", limited_conformance)]
    if not machine.sim:
        rows.insert(0, ("conformance simulated", simulated_conformance))
    rows += [(f"victim: {name}", victim(script)) for name, script in VICTIMS]
    rows += [(name, framework(program, environment)) for name, program, environment in FRAMEWORKS]
    chosen = [row for row in rows if not wanted or any(row[0].startswith(name) for name in wanted)]
    results = []
    for name, row in chosen:
        result = row(machine, name)
        print(f"{name}: {result.verdict}", file=sys.stderr, flush=True)
        results.append(result)
    return results


def _began(name, outcome, limit=None):
    """The result so far; it is complete if nothing more can be said."""
    if outcome is None:
        result = Result(name)
        result.left_out = "no time"
        return result, False
    held = limit and limit * MIB
    result = Result(name, limit=held, peak=outcome.peak, seconds=outcome.seconds)
    if held and outcome.peak > held:
        result.trouble.append(f"above the limit by {(outcome.peak - held) / MIB:.1f} MiB")
    return result, True


def conformance(machine, name, limit=None):
    program = machine.programs / "apportion-conformance"
    there = machine.out / "conformance-simulated.out"
    compare = ["--compare", there] if limit is None and there.exists() else []
    outcome = machine.run(name, [program, *compare], limit=limit, timeout=150)
    result, goes_on = _began(name, outcome, limit)
    if goes_on:
        result.remark = f"({outcome.last_words})"
        _judge_facts(result, outcome)
    return result


def limited_conformance(machine, name):
    return conformance(machine, name, limit=FRAMEWORK_LIMIT)


def simulated_conformance(machine, name):
    """The same cases on the simulated driver of the tree, so that the next row can name differences."""
    program = machine.programs / "apportion-conformance"
    outcome = machine.run(name, [machine.apportion, "sim", "--", program], timeout=60)
    result, goes_on = _began(name, outcome)
    if goes_on:
        (machine.out / "conformance-simulated.out").write_text(outcome.output)
        result.peak = None
        result.remark = f"({outcome.last_words})"
        _judge_facts(result, outcome)
    return result


def victim(script):
    """A victim sees the limit as its card, is refused (code 2) and goes on: its last step succeeds."""

    def row(machine, name):
        program = machine.programs / "victim"
        if not program.exists():
            result = Result(name)
            result.left_out = f"{program.name} is not built"
            return result
        outcome = machine.run(name, [program, "-"], limit=VICTIM_LIMIT, timeout=30, says=script)
        result, goes_on = _began(name, outcome, VICTIM_LIMIT)
        if not goes_on:
            return result
        steps = [line.split() for line in outcome.output.splitlines() if line.strip()]
        if outcome.status != 0 or len(steps) < 2:
            result.trouble.append(outcome.last_words)
            return result
        sees = [int(step[2]) for step in steps if step[0] == "total" and step[1] == "0"]
        result.sees = sees[0] if sees else None
        refused = [step for step in steps if step[1] == "2"]
        filled = [int(step[2]) for step in refused if step[0] == "fill"]
        if filled:
            result.refused = filled[0]
        elif refused and script.count("512M") == 5:
            result.refused = (steps.index(refused[0]) - 1) * PIECE
        _judge(result, refused)
        takes_all = script.split()[-2:] == ["alloc", "500M"]
        if steps[-1][1] != ("2" if takes_all else "0"):
            result.trouble.append(f"the last step came to {' '.join(steps[-1])}")
        return result

    return row


def framework(program, environment):
    """A program says what it saw as one line of JSON, its last."""

    def row(machine, name):
        asked = {**environment, "GPU_TIER_LIMIT": str(FRAMEWORK_LIMIT * MIB)}
        outcome = machine.run(
            name,
            [sys.executable, PROGRAMS / program],
            limit=FRAMEWORK_LIMIT,
            timeout=90,
            environment=asked,
        )
        result, goes_on = _began(name, outcome, FRAMEWORK_LIMIT)
        if not goes_on:
            return result
        if outcome.status == LEFT_OUT:
            result = Result(name)
            result.left_out = outcome.last_words
            return result
        if outcome.status != 0:
            result.trouble.append(outcome.last_words)
            return result
        said = json.loads(outcome.output.strip().splitlines()[-1])
        result.sees, result.refused = said["sees"], said["refused_at"]
        result.remark = f"({said['remark']})" if said.get("remark") else ""
        _judge(result, said["refusal"])
        if said["refused_at"] > FRAMEWORK_LIMIT * MIB:
            result.trouble.append("refused only above the limit")
        if said["refused_at"] < FRAMEWORK_LIMIT * MIB // 2:
            result.trouble.append("refused below half of the limit")
        return result

    return row


def _judge_facts(result, outcome):
    """Each documented fact that does not hold is named, with what was seen instead of what."""
    if outcome.status == 0:
        return
    # A program that was ended may have left half a line.
    lines = [line for line in outcome.output.splitlines() if line.startswith("{") and line.endswith("}")]
    for record in map(json.loads, lines):
        if not record["holds"]:
            wanted = f" instead of {json.dumps(record['wanted'])}" if "wanted" in record else ""
            seen = f"{json.dumps(record['seen'])}{wanted}"
            result.trouble.append(f"{record['case']}: {record['fact']}: {seen}")
    result.trouble.append(outcome.last_words)


def _judge(result, refusal):
    if result.sees != result.limit:
        result.trouble.append("sees another size than its limit")
    if not refusal:
        result.trouble.append("was never refused")
