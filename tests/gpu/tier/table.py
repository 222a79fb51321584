"""One row for each program."""

MIB = 1 << 20
COLUMNS = ["program", "limit", "sees", "refused at", "peak by NVML", "seconds", "verdict"]


class Result:
    """What a row says. `trouble` is a list of sentences; `left_out` a reason."""

    def __init__(self, name, limit=None, sees=None, refused=None, peak=None, seconds=None):
        self.name = name
        self.limit = limit
        self.sees = sees
        self.refused = refused
        self.peak = peak
        self.seconds = seconds
        self.trouble = []
        self.left_out = None
        self.remark = ""

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
        sizes = [_mib(size) for size in (self.limit, self.sees, self.refused, self.peak)]
        return [self.name, *sizes, seconds, self.verdict]


def _mib(size):
    return "" if size is None else f"{size / MIB:.0f} MiB"


def of(results):
    """The table as Markdown, which a terminal shows well enough."""
    lines = [COLUMNS, *(result.cells() for result in results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    rule = ["-" * width for width in widths]
    lines.insert(1, rule)
    padded = (" | ".join(cell.ljust(width) for cell, width in zip(line, widths)) for line in lines)
    return "\n".join(f"| {line} |" for line in padded)
