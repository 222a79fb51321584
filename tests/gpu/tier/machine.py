"""How a program is run here: on which driver, with which limit, for how long, and seen by whom."""

import importlib.metadata
import json
import os
import platform
import re
import signal
import socket
import struct
import subprocess
import sys
import time

from tier.program import Program, adopt_orphans, end_strays, slug
from tier.watch import Watch

MIB = 1 << 20
# Versions of what a row may need, for the record.
FRAMEWORKS = ["torch", "jax", "jaxlib", "cupy", "triton", "numba", "numba-cuda", "numpy", "tensorflow", "vllm"]
# What would make a program see another card, or us another driver.
NOT_INHERITED = ["LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "APPORTION_ACCOUNT"]
# Left of the whole time for ending what runs and writing the record.
RESERVE = 6
# The card is free again so many seconds after a row, or is not waited for.
SETTLES = 5.0


class Share:
    """The size of a program's share: MiB, or a fraction of the card."""

    def __init__(self, mib=None, fraction=None):
        self.mib = mib
        self.fraction = fraction

    @property
    def words(self):
        if self.mib is not None:
            return ["--gpu-memory", str(self.mib)]
        return ["--gpu-fraction", str(self.fraction)]


class Machine:
    """One instance of Apportion in a folder of its own, on the real or the simulated driver."""

    def __init__(self, given, scratch, end):
        self.sim = given.sim
        self.apportion = given.staged / "bin/apportion"
        self.libraries = given.staged / "lib/apportion"
        self.programs = given.programs
        self.hami_core = given.hami_core
        self.longest = given.row_seconds
        self.scratch = scratch
        self.files = scratch / "rows"
        self.files.mkdir()
        self.folder = scratch / "instance"
        self.folder.mkdir(mode=0o700)
        self.end = end
        self.watch = None
        self.free = None
        self.environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        self.environment |= {"APPORTION_DIR": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        if self.sim:
            self.environment["GPU_TIER_SIM"] = "1"

    def start(self):
        """Starts the agent (and the simulated machine) and the sampler, so that no row waits for them."""
        adopt_orphans()
        if self.sim:
            self._bare([self.apportion, "sim", "--", "/bin/true"], 30)
            os.environ["APPORTION_SIM_SOCKET"] = str(self.folder / "sim/driver.sock")
            library = str(self.libraries / "sim/libnvidia-ml.so.1")
        else:
            library = "libnvidia-ml.so.1"
        self.watch = Watch(library, dict(self.environment, **self._sim_socket()))
        if self.watch.facts.get("cards", 1) > 1 and not self.sim:
            # What runs without a limit uses the card that is watched, too.
            self.environment["CUDA_VISIBLE_DEVICES"] = self.watch.facts["uuid"]
        self._bare(self._words(["/bin/true"], Share(mib=512)), 60)
        self.free = self._free()

    def _sim_socket(self):
        return {"APPORTION_SIM_SOCKET": os.environ["APPORTION_SIM_SOCKET"]} if self.sim else {}

    def _bare(self, words, seconds):
        done = subprocess.run(
            [str(word) for word in words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        if done.returncode:
            raise SystemExit(f"run: apportion could not start: {done.stderr.strip() or done.returncode}")

    @property
    def seconds_left(self):
        return self.end - time.monotonic() - RESERVE

    def facts(self):
        """What this machine is, for the record."""
        versions = {}
        for name in FRAMEWORKS:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return {
            **self.watch.facts,
            "simulated": self.sim,
            "kernel": platform.release(),
            "libc": " ".join(platform.libc_ver()),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
            "frameworks": versions,
        }

    def begin(self, name, command, share=None, timeout=60, environment=None, talks=False, watched=True):
        """Starts `command`, under a share if there is one; None if there is no time left for it.

        One that is not `watched` is not disturbed, and nothing is known of what it held.
        """
        timeout = min(timeout, self.longest, self.seconds_left)
        if timeout < 2:
            return None
        words = self._words(command, share)
        files = [self.files / f"{slug(name)}{kind}" for kind in (".out", ".err")]
        program = Program(words, {**self.environment, **(environment or {})}, files, timeout, talks)
        program.name, program.is_watched = name, watched
        if watched:
            self.watch.begin(name, program.pid, None, files[1] if share else None)
        return program

    def finish(self, program):
        """Waits for the end of what `begin` started; what came of it."""
        try:
            status = program.finish()
        except BaseException:
            program.kill()
            raise
        return program.outcome(status, self.watch.end(program.name) if program.is_watched else {})

    def give_up(self, begun):
        """Ends programs of which one did not begin."""
        for program in filter(None, begun):
            program.kill()
            self.finish(program)

    def run(self, name, command, says=None, **options):
        """Runs a command to its end.

        With `says`, those lines are its input, and after each answer NVML is asked once more before the next,
        so that nothing is too quick to be seen.
        """
        program = self.begin(name, command, talks=bool(says), **options)
        if program is None:
            return None
        try:
            for line in says.splitlines() if says else ():
                program.tell(line)
                program.hear()
                self.watch.look()
        except BaseException:
            program.kill()
            raise
        return self.finish(program)

    def _words(self, command, share):
        words = [str(word) for word in command]
        sim = ["--sim"] if self.sim else []
        card = ["--gpu", self.watch.facts["uuid"]] if self.watch and self.watch.facts.get("uuid") else []
        if share:
            return [str(self.apportion), "run", *sim, "--json", *share.words, *card, "--", *words]
        return [str(self.apportion), "sim", "--", *words] if self.sim else words

    def sweep(self):
        """Ends what a row left running, and waits until the agent sees the card as it was before all rows.

        The agent samples NVML four times a second: what a row without a share took is still on its books for a moment,
        and the next row would be refused.
        """
        end_strays({self.watch.process.pid} if self.watch else set())
        end = time.monotonic() + SETTLES
        while self.free is not None and time.monotonic() < end:
            free = self._free()
            if free is None or free >= self.free:
                return
            time.sleep(0.1)

    def _free(self):
        """The bytes that the agent could give; None if it does not say."""
        words = [str(self.apportion), "gpus", "--json", *(["--sim"] if self.sim else [])]
        try:
            said = subprocess.run(
                words, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SETTLES
            )
            cards = {card["uuid"]: card["free_bytes"] for card in json.loads(said.stdout)}
        except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired):
            return None
        return cards.get(self.watch.facts.get("uuid"))

    def stop(self):
        """Ends the agent and the simulated machine that this run started, and all else below it."""
        if self.watch:
            self.watch.stop()
        sockets = ["agent.sock", "sim/agent.sock", "sim/driver.sock"]
        served = [pid for pid in map(self._server, sockets) if pid]
        for pid in served:
            _tell(pid, signal.SIGTERM)
        end = time.monotonic() + 3
        while any(map(_is_there, served)) and time.monotonic() < end:
            time.sleep(0.02)
        for pid in filter(_is_there, served):
            _tell(pid, signal.SIGKILL)
        end_strays(set())

    def _server(self, name):
        """The process that listens on a socket of this instance, by the kernel's word."""
        credentials = struct.Struct("3i")
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2)
            try:
                client.connect(str(self.folder / name))
            except OSError:
                return None
            told = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
            return credentials.unpack(told)[0]


def _tell(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _is_there(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return not re.search(r"\) [ZX] ", stat.read())
    except OSError:
        return False
