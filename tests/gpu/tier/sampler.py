"""A process of its own that asks NVML and the accounts, every few milliseconds, what programs hold.

It is apart from the script because a driver that hangs must not hang the script. It reads one JSON line per
order from its input and answers `done` and `look` with one line each; `tier.watch` is the other end.
"""

import ctypes
import json
import os
import select
import struct
import sys
import time

PERIOD = 0.004
MANY = 512
# NVML_VALUE_NOT_AVAILABLE: NVML can't say what this process uses (WSL, some virtual machines, MIG).
NOT_AVAILABLE = 2**64 - 1
# A record keeps so many changes of one program's memory.
CHANGES = 400
# Places in the account's files, all in 64-byte lines (proto/abi/src/account/layout.rs).
LINE = 64
LIMIT_AT, OVERHEAD_AT = LINE + 24, LINE + 40
PEAK_AT, DENIED_AT = 2 * LINE, 2 * LINE + 8


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """The first card, by NVML."""

    def __init__(self, library):
        self.nvml = ctypes.CDLL(library)
        code = self.nvml.nvmlInit_v2()
        if code:
            raise OSError(f"nvmlInit returned {code}")
        self.card = ctypes.c_void_p()
        code = self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.card))
        if code:
            raise OSError(f"there is no card (nvmlDeviceGetHandleByIndex returned {code})")

    def facts(self):
        """What this machine is, as far as NVML says."""
        count = ctypes.c_uint()
        self.nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        return {
            "cards": count.value,
            "uuid": self._text("nvmlDeviceGetUUID", self.card),
            "card": self._text("nvmlDeviceGetName", self.card),
            "driver": self._text("nvmlSystemGetDriverVersion"),
            "total": self._memory().total,
        }

    def _text(self, function, *arguments):
        text = ctypes.create_string_buffer(96)
        function = getattr(self.nvml, function, None)
        code = function(*arguments, text, len(text)) if function else -1
        return text.value.decode(errors="replace") if code == 0 else ""

    def _memory(self):
        memory = _Memory()
        self.nvml.nvmlDeviceGetMemoryInfo(self.card, ctypes.byref(memory))
        return memory

    def used(self):
        """Bytes in use on the whole card."""
        return self._memory().used

    def processes(self):
        """Process ids and what each uses; None where NVML can't say."""
        count = ctypes.c_uint(MANY)
        list_ = (_Process * MANY)()
        code = self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(self.card, ctypes.byref(count), list_)
        if code:
            return {}
        known = {}
        for process in list_[: count.value]:
            known[process.pid] = None if process.used == NOT_AVAILABLE else process.used
        return known


class Account:
    """The account of one limited program, once `apportion run --json` has named it."""

    def __init__(self, said):
        self.said = said
        self.limits = self.usage = None
        self.peak = self.overhead = self.denied = self.limit = None

    def read(self):
        if self.usage is None and not self._found():
            return
        # The files stay readable through these descriptors after the agent has removed them.
        self.peak = self._word(self.usage, PEAK_AT)
        self.denied = self._word(self.usage, DENIED_AT)
        self.overhead = max(self.overhead or 0, self._word(self.limits, OVERHEAD_AT) or 0)
        self.limit = self._word(self.limits, LIMIT_AT)

    @staticmethod
    def _word(file, offset):
        bytes_ = os.pread(file, 8, offset)
        return struct.unpack("=Q", bytes_)[0] if len(bytes_) == 8 else None

    def _found(self):
        try:
            with open(self.said, encoding="utf-8", errors="replace") as lines:
                line = next((line for line in lines if line.startswith("{") and "account_dir" in line), "")
            folder = json.loads(line)["account_dir"] if line.endswith("\n") else None
            if folder is None:
                return False
            self.limits = os.open(f"{folder}/limits", os.O_RDONLY | os.O_CLOEXEC)
            self.usage = os.open(f"{folder}/usage", os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, ValueError):
            return False
        return True

    def close(self):
        for file in (self.limits, self.usage):
            if file is not None:
                os.close(file)


class Watched:
    """One program with all its descendants."""

    def __init__(self, order, before):
        self.root = order["pid"]
        self.limit = order.get("limit")
        self.account = Account(order["said"]) if order.get("said") else None
        self.before = before
        self.begun = time.monotonic()
        self.named = False
        self.by_card = False
        self.peak = 0
        self.processes = 0
        self.looks = 0
        self.changes = []
        self.above = self.above_longest = self.above_total = 0.0
        self.above_since = None
        self.last = self.begun

    def look(self, now, processes, used_by_all, is_alone):
        own = [used for pid, used in processes.items() if _belongs(pid, self.root)]
        self.processes = max(self.processes, len(own))
        if own and None not in own:
            self.named = True
            used = sum(own)
        elif self.named and not own:
            used = 0
        elif is_alone:
            # NVML does not name it, as in some containers: what the card uses more than before.
            used = max(0, used_by_all - self.before)
            self.by_card = self.by_card or used > 0
        else:
            return
        self.looks += 1
        self.peak = max(self.peak, used)
        if len(self.changes) < CHANGES and (not self.changes or self.changes[-1][1] != used):
            self.changes.append([round((now - self.begun) * 1000), used])
        if self.account:
            self.account.read()
            self.limit = self.account.limit or self.limit
        self._above(now, used)

    def _above(self, now, used):
        over = used - self.limit if self.limit else 0
        if over > 0:
            self.above = max(self.above, over)
            if self.above_since is None:
                self.above_since = self.last
            self.above_longest = max(self.above_longest, now - self.above_since)
            self.above_total += now - self.last
        else:
            self.above_since = None
        self.last = now

    def done(self):
        account = self.account
        if account:
            account.read()
            account.close()
        return {
            "peak": self.peak,
            "source": "card" if self.by_card else "process",
            "processes": self.processes,
            "looks": self.looks,
            "changes": self.changes,
            "above": int(self.above),
            "above_longest": round(self.above_longest, 3),
            "above_total": round(self.above_total, 3),
            "limit": self.limit,
            "claims": account and account.peak,
            "denied": account and account.denied,
            "unannounced": account and account.overhead,
        }


def _belongs(pid, root):
    """Whether a process is the root, below it, or was left behind in its session."""
    for _ in range(64):
        if pid == root:
            return True
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            return False
        parent, session = int(fields[1]), int(fields[3])
        if session == root:
            return True
        if parent <= 1:
            return False
        pid = parent
    return False


class Sampler:
    """Reads orders and looks in between."""

    def __init__(self, nvml):
        self.nvml = nvml
        self.watched = {}
        self.buffer = b""

    def run(self):
        while True:
            wait = PERIOD if self.watched else None
            if select.select([0], [], [], wait)[0] and not self._orders():
                return
            self._look()

    def _orders(self):
        piece = os.read(0, 65536)
        if not piece:
            return False
        *lines, self.buffer = (self.buffer + piece).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return True

    def _obey(self, order):
        what = order["order"]
        if what == "watch":
            self.watched[order["name"]] = Watched(order, self.nvml.used())
        elif what == "look":
            self._look()
            _say({"looked": True})
        else:
            self._look()
            watched = self.watched.pop(order["name"], None)
            _say(watched.done() if watched else {})

    def _look(self):
        if not self.watched:
            return
        processes, used = self.nvml.processes(), self.nvml.used()
        now = time.monotonic()
        for watched in self.watched.values():
            watched.look(now, processes, used, len(self.watched) == 1)


def _say(answer):
    os.write(1, json.dumps(answer).encode() + b"\n")


def main():
    try:
        nvml = Nvml(sys.argv[1])
    except OSError as error:
        _say({"error": str(error)})
        return
    _say(nvml.facts())
    Sampler(nvml).run()


if __name__ == "__main__":
    main()
