"""What the check programs share: saying what holds, looking at the card, and filling it.

A program runs on any driver, simulated or real, with a limit or without. Whoever starts it says in the
environment what the card must look like:

    CARD_BYTES       the memory of the card as CUDA must show it: the limit, or the card's own size
    CARD_NVML_BYTES  the same as NVML must show it (without a limit NVML counts the driver's reserve too)

It says one JSON object a line: `{"check": NAME, "holds": BOOL, "seen": TEXT}` for what was checked,
`{"figure": NAME, "value": VALUE}` for what is worth a place in the table, and `{"end": true}` as its last
line, so that a program that stops half way is noticed.
"""

import contextlib
import json
import os
import sys
import time

MIB = 1 << 20
CARD = int(os.environ["CARD_BYTES"])
CARD_BY_NVML = int(os.environ["CARD_NVML_BYTES"])
# The size of a piece where a card is filled.
PIECE = max(MIB, CARD // 64 // (2 * MIB) * (2 * MIB))


def _print(said):
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def check(name, holds, seen=""):
    """Says whether something is as it should be, and what was seen."""
    _print({"check": name, "holds": bool(holds), "seen": " ".join(str(seen).split())})


def equal(name, seen, wanted):
    """Says whether something is what it should be."""
    check(name, seen == wanted, seen if seen == wanted else f"{seen}, not {wanted}")


def figure(name, value):
    """Says something for the table."""
    _print({"figure": name, "value": value})


def end():
    """Says that the program came to its end."""
    _print({"end": True})


@contextlib.contextmanager
def section(name):
    """An exception in the block is a check that does not hold; the program goes on behind the block."""
    try:
        yield
    except Exception as error:
        check(name, False, f"{type(error).__name__}: {error}")


def is_part(size, part):
    """Whether a size is that part of the card, to the byte or rounded up to the driver's 2 MiB."""
    exact = int(CARD * part)
    return size in (exact, -(-exact // (2 * MIB)) * 2 * MIB)


def in_mib(size):
    return f"{size / MIB:.10g} MiB"


def card_by_nvml():
    """The total memory of the first card as NVML shows it."""
    import pynvml

    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    total = pynvml.nvmlDeviceGetMemoryInfo(card).total
    pynvml.nvmlShutdown()
    return total


def sees_the_card(**sizes):
    """Each size, by the name of where it was read, must be the card's; so must NVML's."""
    for name, size in sizes.items():
        equal(f"sees the card's size: {name}", size, CARD)
    equal("sees the card's size: NVML", card_by_nvml(), CARD_BY_NVML)
    figure("sees", max(sizes.values()) if sizes else CARD)


def fill(take, refusal, piece=PIECE):
    """Calls `take(bytes)` until it raises `refusal`; what was taken, and the error.

    The error is None if twice the card was given without one.
    """
    taken = []
    while len(taken) * piece < 2 * CARD:
        try:
            taken.append(take(piece))
        except refusal as error:
            return taken, error
    return taken, None


def fills_twice(name, take, refusal, release, least=0.5, most=1.0, piece=PIECE):
    """Fills the card, releases all, and fills it again; returns the first error.

    What is held at the refusal must lie between `least` and `most` of the card.
    """
    taken, error = fill(take, refusal, piece)
    held = len(taken) * piece
    check(f"{name}: the framework's own out-of-memory error", error is not None, type(error).__name__)
    check(f"{name}: held at the refusal", least * CARD <= held <= most * CARD, in_mib(held))
    figure("held", held)
    if error is not None:
        figure("error", f"{type(error).__module__}.{type(error).__qualname__}")
    text = "" if error is None else str(error)
    # An error keeps the frames that it passed through, and what they hold.
    error = None
    taken.clear()
    release()
    taken, error = fill(take, refusal, piece)
    again = len(taken) * piece
    check(
        f"{name}: goes on after it and gets as much again",
        error is not None and again >= held - 2 * piece,
        in_mib(again),
    )
    error = None
    taken.clear()
    release()
    return text


def meet(name, seconds=240):
    """Waits until the other program that runs beside this one has come to the same place."""
    folder = os.environ.get("MEETING")
    if not folder:
        return
    own = os.environ["MEETING_SELF"]
    others = os.environ["MEETING_OTHERS"].split()
    open(os.path.join(folder, f"{name}-{own}"), "w").close()
    end_of_patience = time.monotonic() + seconds

    def has_come(other):
        return any(os.path.exists(os.path.join(folder, f"{place}-{other}")) for place in (name, "left"))

    while not all(map(has_come, others)):
        if time.monotonic() > end_of_patience:
            raise TimeoutError(f"{' '.join(others)} did not come to {name!r} in {seconds} s")
        time.sleep(0.02)


def leave():
    """Says that nobody needs to wait for this program any more."""
    if os.environ.get("MEETING"):
        meet_at = os.path.join(os.environ["MEETING"], f"left-{os.environ['MEETING_SELF']}")
        open(meet_at, "w").close()
