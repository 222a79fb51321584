"""The other end of the sampler: starts it, gives it orders, and lives on without it."""

import json
import pathlib
import select
import subprocess
import sys
import time

SAMPLER = pathlib.Path(__file__).with_name("sampler.py")
# A sampler that takes longer than that hangs in the driver.
PATIENCE = 10.0
# So many are started anew; after that programs run unseen, which fails their rows.
RESTARTS = 2


class Silent(Exception):
    """The sampler gave no answer."""


class Watch:
    """What NVML and the accounts say of running programs, asked by a process of its own."""

    def __init__(self, library, environment):
        self.library = library
        self.environment = environment
        self.process = None
        self.lost = 0
        self.facts = self._start()
        if "error" in self.facts:
            self.stop()
            raise SystemExit(f"run: no driver ({self.facts['error']}); hint: --sim needs none")

    def _start(self):
        self.process = subprocess.Popen(
            [sys.executable, SAMPLER, self.library],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.buffer = b""
        try:
            return self._answer(2 * PATIENCE)
        except Silent:
            return {"error": "NVML did not answer"}

    def _answer(self, patience=None):
        end = time.monotonic() + (PATIENCE if patience is None else patience)
        while b"\n" not in self.buffer:
            left = end - time.monotonic()
            ready = left > 0 and select.select([self.process.stdout], [], [], left)[0]
            piece = self.process.stdout.read1(65536) if ready else b""
            if not piece:
                raise Silent()
            self.buffer += piece
        line, _, self.buffer = self.buffer.partition(b"\n")
        return json.loads(line)

    def _order(self, **order):
        if self.lost > RESTARTS:
            raise Silent()
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise Silent() from None

    def begin(self, name, pid, limit, said):
        """Watches a process and all below it from now on."""
        try:
            self._order(order="watch", name=name, pid=pid, limit=limit, said=str(said) if said else None)
        except Silent:
            self._again()

    def look(self):
        """Returns when everything that is watched has been looked at once more."""
        try:
            self._order(order="look")
            self._answer()
        except Silent:
            self._again()

    def end(self, name):
        """What was seen; nothing if the sampler was lost on the way."""
        try:
            self._order(order="done", name=name)
            return self._answer()
        except Silent:
            self._again()
            return {}

    def _again(self):
        """A sampler that hangs is left to its fate, and another one started."""
        self.lost += 1
        if self.lost <= RESTARTS:
            self.stop()
            self._start()

    def stop(self):
        if self.process:
            self.process.kill()
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                pass
