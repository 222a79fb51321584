"""How a program is run here: on which driver, with which limit, for how long, and seen by whom."""

import os
import signal
import socket
import struct
import subprocess
import threading
import time

from tier.watch import Watch

MIB = 1 << 20


class Outcome:
    """What came of one program."""

    def __init__(self, status, output, errors, peak, seconds):
        self.status = status
        self.output = output
        self.errors = errors
        self.peak = peak
        self.seconds = seconds

    @property
    def last_words(self):
        lines = [line for line in self.errors.splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"ended with {self.status}"


class Machine:
    """One instance of Apportion in a folder of its own, on the real or the simulated driver."""

    def __init__(self, given, scratch, out):
        self.sim = given.sim
        self.apportion = given.staged / "bin/apportion"
        self.libraries = given.staged / "lib/apportion"
        self.programs = given.programs
        self.out = out
        self.folder = scratch / "instance"
        self.folder.mkdir(mode=0o700)
        self.end = time.monotonic() + given.seconds
        self.environment = dict(os.environ, APPORTION_DIR=str(self.folder), PYTHONDONTWRITEBYTECODE="1")
        if self.sim:
            self.environment["GPU_TIER_SIM"] = "1"
        self.environment.pop("LD_PRELOAD", None)
        if self.sim:
            # The first command starts the simulated machine; the watcher needs it to be there.
            self._bare(["/bin/true"]).check_returncode()
        self.watch = Watch(self._nvml())

    def _nvml(self):
        if not self.sim:
            return "libnvidia-ml.so.1"
        os.environ["APPORTION_SIM_SOCKET"] = str(self.folder / "sim/driver.sock")
        return str(self.libraries / "sim/libnvidia-ml.so.1")

    def _bare(self, command):
        return subprocess.run(
            [self.apportion, "sim", "--", *command],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            timeout=30,
        )

    @property
    def seconds_left(self):
        return self.end - time.monotonic()

    def run(self, name, command, limit=None, timeout=90, environment=None, says=None):
        """Runs `command`, under `limit` MiB if there is one; None if there is no time left for it.

        With `says`, those lines are its input, and it is held after its answers (each ends with a line
        with a dot) until NVML has been asked, so that nothing is too quick to be seen.
        """
        timeout = min(timeout, self.seconds_left)
        if timeout < 5:
            return None
        begun = time.monotonic()
        process = subprocess.Popen(
            self._words(command, limit),
            env={**self.environment, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        late = threading.Timer(timeout, os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        with self.watch.over(process.pid) as seen:
            answer = _ask(process, says, seen) if says else ""
            output, errors = process.communicate()
        status = process.returncode
        if time.monotonic() - begun >= timeout:
            status, errors = "time", f"{errors}\nit took more than {timeout:.0f} s"
        late.cancel()
        kept = str(self.out / name.replace(" ", "-").replace(":", ""))
        for kind, text in ((".out", answer + output), (".err", errors)):
            with open(kept + kind, "w", encoding="utf-8") as file:
                file.write(text)
        return Outcome(status, answer + output, errors, seen.peak, time.monotonic() - begun)

    def _words(self, command, limit):
        words = [str(word) for word in command]
        sim = ["--sim"] if self.sim else []
        if limit is not None:
            return [str(self.apportion), "run", *sim, "--gpu-memory", str(limit), "--", *words]
        return [str(self.apportion), "sim", "--", *words] if self.sim else words

    def stop(self):
        """Ends the agent and the simulated machine that this run started."""
        sockets = ["agent.sock", "sim/agent.sock", "sim/driver.sock"]
        served = [pid for pid in map(self._server, sockets) if pid]
        for pid in served:
            os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + 10
        while any(map(_is_there, served)) and time.monotonic() < end:
            time.sleep(0.05)

    def _server(self, name):
        """The process that listens on a socket of this instance, by the kernel's word."""
        credentials = struct.Struct("3i")
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(self.folder / name))
            except OSError:
                return None
            told = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
            return credentials.unpack(told)[0]


def _is_there(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return ") Z " not in stat.read()
    except OSError:
        return False


def _ask(process, lines, seen):
    """The answers to lines of input; after each, NVML is asked at least twice."""
    answers = []
    for line in lines.splitlines():
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            break
        for said in process.stdout:
            if said.strip() == ".":
                seen.twice()
                break
            answers.append(said)
    return "".join(answers)
