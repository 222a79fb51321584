"""One row for each program, and what is asked of it."""

MIB = 1 << 20
COLUMNS = ["row", "limit", "sees", "refused at", "claims", "by NVML", "above by", "for", "seconds", "verdict"]
# A terminal's share of a verdict; the record has all of it.
SHOWN = 110
# What NVML may count above the limit for each process, and is only reported: what the driver takes without
# being asked (kernels loaded late, code of cuBLAS and cuDNN, queues) until the agent has learned of it.
UNANNOUNCED = 128 * MIB


class Result:
    """What a row says. `trouble` is a list of sentences; `left_out` a reason."""

    def __init__(self, name):
        self.name = name
        self.limit = self.sees = self.refused = self.seconds = None
        # The most that the account's claims were, and that NVML counted.
        self.claims = self.peak = None
        # How far NVML was above the limit, and for how many seconds on end.
        self.above = self.above_for = None
        self.trouble = []
        self.left_out = None
        self.remark = ""
        # Whatever else is worth keeping.
        self.more = {}

    @classmethod
    def of(cls, name, outcome, is_limited=False):
        """What can be said of every program; `None` for one that was not begun leaves the row out."""
        result = cls(name)
        if outcome is None:
            result.left_out = "no time"
            return result
        result.seconds = outcome.seconds
        result.more["status"] = outcome.status
        result.note(outcome.seen, is_limited)
        return result

    def note(self, seen, is_limited):
        """Takes over what NVML and the account said, and judges both."""
        if not seen:
            self.trouble.append("NVML did not answer")
            return
        self.peak = seen["peak"]
        self.more["changes"] = seen["changes"]
        self.more["source"] = seen["source"]
        if not is_limited:
            return
        self.limit, self.claims = seen["limit"], seen["claims"]
        self.more |= {name: seen[name] for name in ("denied", "unannounced", "processes", "above_total")}
        if self.limit is None:
            self.trouble.append("no account was seen")
            return
        if self.claims is not None and self.claims > self.limit:
            self.trouble.append(f"claims above the limit by {_exact(self.claims - self.limit)}")
        if seen["above"]:
            self.above, self.above_for = seen["above"], seen["above_longest"]
            bound = UNANNOUNCED * max(1, seen["processes"])
            if seen["above"] > bound:
                self.trouble.append(
                    f"NVML above the limit by {_exact(seen['above'])} for {seen['above_longest']:.2f} s"
                )

    @property
    def is_begun(self):
        return self.left_out is None

    def leave_out(self, reason):
        self.__init__(self.name)
        self.left_out = reason
        return self

    @property
    def failed(self):
        return bool(self.trouble)

    @property
    def verdict(self):
        if self.left_out:
            return f"left out: {self.left_out}"
        return "; ".join(self.trouble) if self.trouble else f"ok {self.remark}".rstrip()

    def cells(self):
        seconds = "" if self.seconds is None else f"{self.seconds:.1f}"
        sizes = [_mib(size) for size in (self.limit, self.sees, self.refused, self.claims, self.peak, self.above)]
        lasted = "" if self.above_for is None else f"{self.above_for:.2f} s"
        return [self.name, *sizes, lasted, seconds, self.verdict]

    def as_json(self):
        names = ["name", "limit", "sees", "refused", "claims", "peak", "above", "above_for", "seconds"]
        return {
            **{name: getattr(self, name) for name in names},
            "verdict": self.verdict,
            "failed": self.failed,
            "left_out": self.left_out,
            **self.more,
        }


def _mib(size):
    return "" if size is None else f"{size / MIB:.0f}"


def _exact(size):
    return f"{size / MIB:.1f} MiB" if size >= MIB else f"{size} B"


def of(results, shown=None):
    """The table as Markdown, which a terminal shows well enough; sizes are MiB."""
    lines = [COLUMNS, *(result.cells() for result in results)]
    if shown:
        lines = [[*line[:-1], _cut(line[-1], shown)] for line in lines]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS) - 1)]
    lines.insert(1, ["-" * width for width in [*widths, len(COLUMNS[-1])]])
    padded = ([cell.ljust(width) for cell, width in zip(line, widths)] + [line[-1]] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def _cut(text, shown):
    text = " ".join(text.split())
    return text if len(text) <= shown else f"{text[: shown - 1]}…"
