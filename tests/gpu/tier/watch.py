"""What NVML counts for a program and its descendants while it runs, seen from outside its limit."""

import contextlib
import ctypes
import os
import threading

MANY = 512


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Seen:
    """The most that one program held at a time on the first card."""

    def __init__(self):
        self.peak = 0
        self.looks = 0
        self.looked = threading.Condition()

    def note(self, used):
        with self.looked:
            self.peak = max(self.peak, used)
            self.looks += 1
            self.looked.notify_all()

    def twice(self):
        """Waits for two more looks: the second began after this was called."""
        with self.looked:
            wanted = self.looks + 2
            self.looked.wait_for(lambda: self.looks >= wanted, timeout=5)


class Watch:
    """NVML, asked every few milliseconds."""

    def __init__(self, library):
        try:
            self.nvml = ctypes.CDLL(library)
        except OSError as error:
            raise SystemExit(f"run: no driver ({error}); hint: --sim needs none") from None
        code = self.nvml.nvmlInit_v2()
        if code:
            raise SystemExit(f"run: nvmlInit returned {code}; hint: --sim needs no driver")
        self.card = ctypes.c_void_p()
        self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.card))

    def _used_by_all(self):
        memory = _Memory()
        self.nvml.nvmlDeviceGetMemoryInfo(self.card, ctypes.byref(memory))
        return memory.used

    def _used_by(self, pids):
        """None where NVML names none of these processes, as from inside some containers."""
        count = ctypes.c_uint(MANY)
        processes = (_Process * MANY)()
        self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(self.card, ctypes.byref(count), processes)
        own = [process.used for process in processes[: count.value] if process.pid in pids]
        return sum(own) if own else None

    @contextlib.contextmanager
    def over(self, pid):
        """Watches a process and its descendants for as long as the block lasts."""
        seen, done, before = Seen(), threading.Event(), self._used_by_all()

        def look():
            while not done.wait(0.004):
                used = self._used_by(_descendants(pid))
                if used is None:
                    used = max(0, self._used_by_all() - before)
                seen.note(used)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield seen
        finally:
            done.set()
            thread.join()


def _descendants(root):
    """A process and all below it."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as stat:
                parents[int(name)] = int(stat.read().rpartition(")")[2].split()[1])
    found, grew = {root}, True
    while grew:
        below = {pid for pid, parent in parents.items() if parent in found}
        grew = not below <= found
        found |= below
    return found
