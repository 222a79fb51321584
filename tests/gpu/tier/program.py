"""One running program: its output goes to files, it ends in time, and nothing of it is left behind."""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import time

# What one file of output may be read as.
READ = 4 << 20
PR_SET_CHILD_SUBREAPER = 36
# Ours, and meant to outlive the program that started them.
DAEMONS = {"apportion-agent", "apportion-simd", "apportion-probe"}


class Outcome:
    """What came of one program."""

    def __init__(self, status, output, errors, seen, seconds):
        self.status = status
        self.output = output
        self.errors = errors
        self.seen = seen
        self.seconds = seconds

    @property
    def last_words(self):
        return last_words(self.errors) or f"ended with {self.status}"


def slug(name):
    """A name that every file system and every tool takes."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.").lower()


# What programs say of their end.
_TROUBLE = re.compile(r"\b(error|fatal|panicked|failed|refused|aborted|Segmentation)\b", re.IGNORECASE)


def last_words(errors):
    """The line that says what went wrong: not a hint or a link that was printed after it."""
    lines = [line.rstrip() for line in errors.splitlines() if line.strip()]
    trace = max((at for at, line in enumerate(lines) if line.startswith("Traceback ")), default=None)
    if trace is not None:
        # The exception is the first line after the frames that is not indented.
        for line in lines[trace + 1 :]:
            if not line.startswith((" ", "\t")):
                return line.strip()
    own = [line for line in lines if not line.startswith("{")]
    for line in reversed(own):
        if _TROUBLE.search(line) and "https://" not in line:
            return line.strip()
    return own[-1].strip() if own else ""


class Program:
    """A program in a session of its own."""

    def __init__(self, words, environment, files, timeout, talks=False):
        self.out, self.err = files
        self.end = time.monotonic() + timeout
        self.timeout = timeout
        self.begun = time.monotonic()
        self.read_to = 0
        self.late = False
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self):
        return self.process.pid

    def tell(self, line):
        """Sends a line."""
        with contextlib.suppress(OSError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def hear(self):
        """Waits until a line with a dot answers what was sent, or the program or its time is over."""
        while not self._has_answered():
            if self.process.poll() is not None or time.monotonic() >= self.end:
                return
            time.sleep(0.002)

    def _has_answered(self):
        with open(self.out, "rb") as out:
            out.seek(self.read_to)
            text = out.read(READ)
        at = (b"\n" + text).find(b"\n.\n")
        if at < 0:
            return False
        self.read_to += at + len(b".\n")
        return True

    def finish(self):
        """Waits for the end and ends what takes too long; the exit status, or why there is none."""
        if self.process.stdin:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(max(0, self.end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.late = True
            return "time" if self.kill() else "time, and it could not be ended"
        return self.process.returncode

    def kill(self):
        """Whether the program and its process group are gone; a driver that hangs may keep them."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            return False
        return True

    def outcome(self, status, seen):
        errors = _text(self.err)
        if self.late:
            errors += f"\nit failed to end within {self.timeout:.0f} s\n"
        output = "".join(line for line in _text(self.out).splitlines(True) if line.strip() != ".")
        return Outcome(status, output, errors, seen, time.monotonic() - self.begun)


def _text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(READ)
    except OSError:
        return ""


def adopt_orphans():
    """Makes this process the parent of what programs leave behind, so that it can be found and ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_strays(keep):
    """Ends every process below this one that is neither in `keep` nor one of our daemons."""
    for _ in range(20):
        strays = [pid for pid in _below(os.getpid(), set(keep)) if pid not in keep]
        if not strays:
            return
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def _below(root, keep):
    """The processes below one, without those in `keep`, our daemons, and what is below them."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                parent = int(stat.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, todo = [], list(children.get(root, []))
    while todo:
        pid = todo.pop()
        if pid in keep or _name(pid) in DAEMONS:
            continue
        found.append(pid)
        todo += children.get(pid, [])
    return found


def _name(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""
