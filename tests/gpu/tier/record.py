"""One archive of all that was seen, replaced as a whole after each row, so that there always is a good one."""

import gzip
import io
import json
import os
import tarfile
import time

from tier import table

NAME = "gpu-record.tar.gz"
FORMAT = 1
# What of a long output is kept, from both ends; and the same where all together is too much.
KEPT, KEPT_LITTLE = 128 << 10, 8 << 10
# The facts of the conformance cases are compared later and must be whole.
FACTS = 4 << 20
MOST = 15 << 20


class Record:
    """The folder that gets the archive and the table."""

    def __init__(self, out, files, about):
        self.out = out
        self.files = files
        self.about = {"format": FORMAT, "begun": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **about}
        self.results = []
        self.ended = "running"
        # The row that runs now; what it has printed is in the archive, too.
        self.running = None

    def write(self):
        """Writes both files; whoever reads them meanwhile sees the ones before."""
        text = table.of(self.results) + "\n"
        self._replace("table.txt", text.encode())
        archive = self._archive(text, KEPT)
        self._replace(NAME, archive if len(archive) <= MOST else self._archive(text, KEPT_LITTLE))
        return self.out / NAME

    def _archive(self, text, kept):
        state = {"ended": self.ended, "running": self.running}
        record = {**self.about, **state, "rows": [result.as_json() for result in self.results]}
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(
            fileobj=zipped, mode="w"
        ) as archive:
            _add(archive, "record.json", json.dumps(record, indent=1).encode())
            _add(archive, "table.txt", text.encode())
            for path in sorted(self.files.iterdir()):
                whole = path.name.endswith(".jsonl")
                _add(archive, f"rows/{path.name}", _ends(path, FACTS if whole else kept))
        return packed.getvalue()

    def _replace(self, name, content):
        new = self.out / f"{name}.new"
        new.write_bytes(content)
        os.replace(new, self.out / name)


def _add(archive, name, content):
    entry = tarfile.TarInfo(f"gpu-record/{name}")
    entry.size = len(content)
    entry.mtime = int(time.time())
    archive.addfile(entry, io.BytesIO(content))


def _ends(path, kept):
    """The beginning and the end of a file."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= kept:
            return file.read(kept)
        begin = file.read(kept // 2)
        file.seek(-(kept // 2), os.SEEK_END)
        return begin + f"\n[{size - kept} bytes are left out]\n".encode() + file.read(kept // 2)
