"""A program of a few lines that takes memory in each way there is, is refused, and goes on."""

from tier.machine import MIB, Share
from tier.table import Result

SHARE = Share(mib=2000)
OUT_OF_MEMORY = "2"

# A name, and what the victim does; after each line NVML is asked. Four pieces of 512 MiB never fit, two always do.
PIECE = 512 * MIB
SCRIPTS = [
    ("plain", "total fill 64M\nfree 0 alloc 64M"),
    ("90 per cent of free", "total take 90\nfree 0 take 90 alloc 500M"),
    ("pitched", "total pitch 512M 1 pitch 512M 1 pitch 512M 1 pitch 512M 1\nfree 0 pitch 512M 1"),
    ("managed", "total managed 512M managed 512M managed 512M managed 512M\nfree 0 managed 512M"),
    ("virtual memory", "total create 512M create 512M create 512M create 512M\nfree 0 create 512M"),
    ("stream order", "total async 512M async 512M async 512M async 512M\nfree 0 sync async 512M"),
    ("second context", "total context fill 64M\nuncontext alloc 64M"),
    (
        "second process",
        "total alloc 256M\nspawn alloc 256M\nalloc 512M alloc 512M\nreap\nalloc 512M",
    ),
]
# Two programs at once: what each has of the card.
FRACTIONS = [0.7, 0.2]


def rows():
    return [(f"victim: {name}", victim(script)) for name, script in SCRIPTS]


def victim(script):
    """A victim sees the limit as its card, is refused and goes on: its last step succeeds."""

    def row(machine, name):
        outcome = machine.run(name, [machine.programs / "victim", "-"], share=SHARE, timeout=30, says=script)
        result = Result.of(name, outcome, True)
        if result.is_begun:
            _judge(result, outcome, script)
        return result

    return row


def two_at_once(machine, name):
    """Two victims fill their shares of one card at the same time, and each gets all of its own."""
    command = [machine.programs / "victim", "-"]
    begun = []
    for fraction in FRACTIONS:
        named = f"{name} {fraction}"
        options = {"share": Share(fraction=fraction), "timeout": 40, "talks": True}
        begun.append(machine.begin(named, command, **options))
    if None in begun:
        machine.give_up(begun)
        return Result.of(name, None)
    for line in ("total", "fill 64M", "free 0 alloc 64M"):
        for program in begun:
            program.tell(line)
        for program in begun:
            program.hear()
        machine.watch.look()
    results = []
    for fraction, program in zip(FRACTIONS, begun):
        outcome = machine.finish(program)
        result = Result.of(f"{name} {fraction}", outcome, True)
        _judge(result, outcome, "total fill 64M free 0 alloc 64M")
        results.append(result)
    return results


def _judge(result, outcome, script):
    steps = [line.split() for line in outcome.output.splitlines() if line.strip()]
    if outcome.status != 0 or len(steps) < 2 or any(len(step) < 2 for step in steps):
        result.trouble.append(outcome.last_words)
        return
    sees = [int(step[2]) for step in steps if step[0] == "total" and step[1] == "0"]
    result.sees = sees[0] if sees else None
    refused = [step for step in steps if step[1] == OUT_OF_MEMORY]
    filled = [int(step[2]) for step in refused if step[0] == "fill"]
    if filled:
        result.refused = filled[0]
    elif refused and script.count("512M") == 5:
        result.refused = (steps.index(refused[0]) - 1) * PIECE
    if result.sees != result.limit:
        result.trouble.append("sees another size than its limit")
    if not refused:
        result.trouble.append("was never refused")
    takes_all = script.split()[-2:] == ["alloc", "500M"]
    if steps[-1][1] != (OUT_OF_MEMORY if takes_all else "0"):
        result.trouble.append(f"the last step came to {' '.join(steps[-1])}")
