"""What the tier says of what it saw: verdicts, last words, samples, differences. Run by `cargo xtask test`."""

import os
import pathlib
import sys
import tarfile
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tier import facts, sampler, table, watch
from tier.program import last_words, slug
from tier.record import Record

MIB = 1 << 20


def seen(**other):
    """What the sampler says of a program that did nothing wrong."""
    usual = {
        "peak": 0, "source": "process", "processes": 1, "looks": 9, "changes": [], "above": 0,
        "above_longest": 0.0, "above_total": 0.0, "limit": 2000 * MIB, "claims": 1000 * MIB, "denied": 0,
        "unannounced": 0,
    }  # fmt: skip
    return usual | other


def verdict(**other):
    result = table.Result("a row")
    result.note(seen(**other), True)
    return result


class Verdicts(unittest.TestCase):
    def test_claims_at_the_limit_are_fine_and_one_byte_above_is_not(self):
        self.assertFalse(verdict(claims=2000 * MIB).failed)
        self.assertEqual(verdict(claims=2000 * MIB + 1).trouble, ["claims above the limit by 1 B"])

    def test_a_small_overshoot_is_shown_and_does_not_fail(self):
        result = verdict(above=table.UNANNOUNCED, above_longest=0.25)
        self.assertFalse(result.failed)
        self.assertEqual((result.above, result.above_for), (table.UNANNOUNCED, 0.25))
        self.assertIn("128", result.cells())
        self.assertIn("0.25 s", result.cells())

    def test_a_large_overshoot_fails_with_its_size_and_duration(self):
        result = verdict(above=table.UNANNOUNCED + MIB, above_longest=0.25)
        self.assertEqual(result.trouble, ["NVML above the limit by 129.0 MiB for 0.25 s"])

    def test_each_process_may_be_above_by_as_much(self):
        self.assertFalse(verdict(above=3 * table.UNANNOUNCED, processes=3).failed)

    def test_claims_and_nvml_are_two_verdicts(self):
        result = verdict(claims=2001 * MIB, above=500 * MIB, above_longest=2.0)
        self.assertEqual(len(result.trouble), 2)

    def test_a_limited_program_without_an_account_is_no_success(self):
        self.assertTrue(verdict(limit=None).failed)


class LastWords(unittest.TestCase):
    def test_the_exception_is_named_and_not_the_link_after_it(self):
        errors = (
            "Traceback (most recent call last):\n"
            '  File "x.py", line 1, in <module>\n'
            "    torch.zeros(1)\n"
            "torch.AcceleratorError: CUDA error: out of memory\n"
            "Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/x.html\n"
            "CUDA kernel errors might be asynchronously reported at some other API call.\n"
        )
        self.assertEqual(last_words(errors), "torch.AcceleratorError: CUDA error: out of memory")

    def test_the_last_of_chained_exceptions_is_named(self):
        errors = (
            "Traceback (most recent call last):\n  File x\nKeyError: 1\n\n"
            "During handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\n  File y\nRuntimeError: no card\n"
        )
        self.assertEqual(last_words(errors), "RuntimeError: no card")

    def test_the_line_of_the_grant_is_nobodys_last_word(self):
        self.assertEqual(last_words('{"id":"1","account_dir":"/x"}\n'), "")

    def test_without_a_traceback_the_error_is_preferred_to_a_link(self):
        errors = "error: no kernel image\nSee https://example.org/error for more\n"
        self.assertEqual(last_words(errors), "error: no kernel image")
        self.assertEqual(last_words("left\nout\n"), "out")


class Samples(unittest.TestCase):
    def watched(self, limit=None):
        watched = sampler.Watched({"pid": os.getpid(), "limit": limit}, before=100 * MIB)
        return os.getpid(), watched

    def test_a_size_that_nvml_does_not_know_is_never_a_size(self):
        pid, watched = self.watched(limit=1000 * MIB)
        watched.look(watched.begun + 1, {pid: None}, 300 * MIB, True)
        self.assertEqual((watched.peak, watched.above), (200 * MIB, 0.0))
        self.assertEqual(watched.done()["source"], "card")

    def test_beside_another_program_nothing_is_guessed_of_an_unknown_size(self):
        pid, watched = self.watched()
        watched.look(watched.begun + 1, {pid: None}, 300 * MIB, False)
        self.assertEqual((watched.peak, watched.looks), (0, 0))

    def test_nvml_says_that_it_does_not_know_by_the_largest_number(self):
        def ask(_card, count, list_):
            count._obj.value = 2
            list_[0].pid, list_[0].used = 7, 5 * MIB
            list_[1].pid, list_[1].used = 8, 2**64 - 1
            return 0

        nvml = sampler.Nvml.__new__(sampler.Nvml)
        nvml.card = None
        nvml.nvml = type("Library", (), {"nvmlDeviceGetComputeRunningProcesses_v3": staticmethod(ask)})
        self.assertEqual(nvml.processes(), {7: 5 * MIB, 8: None})

    def test_the_longest_time_above_the_limit_is_kept(self):
        pid, watched = self.watched(limit=100 * MIB)
        begun = watched.begun
        for second, used in [(1, 90), (2, 130), (3, 120), (4, 100), (5, 101), (6, 0)]:
            watched.look(begun + second, {pid: used * MIB}, 0, True)
        said = watched.done()
        self.assertEqual(said["above"], 30 * MIB)
        # From the last look below to the last look above: nobody can say it more exactly.
        self.assertEqual((said["above_longest"], said["above_total"]), (2.0, 3.0))

    def test_who_was_named_once_holds_nothing_when_it_is_gone(self):
        pid, watched = self.watched()
        watched.look(watched.begun + 1, {pid: 5 * MIB}, 500 * MIB, True)
        watched.look(watched.begun + 2, {}, 900 * MIB, True)
        self.assertEqual(watched.peak, 5 * MIB)


class Hanging(unittest.TestCase):
    """A driver whose management library stops answering."""

    def test_a_sampler_that_hangs_costs_little_and_is_said(self):
        usual = watch.SAMPLER, watch.PATIENCE
        with tempfile.TemporaryDirectory() as folder:
            hangs = pathlib.Path(folder, "hangs.py")
            hangs.write_text("import time\nprint('{}', flush=True)\ntime.sleep(999)\n")
            watch.SAMPLER, watch.PATIENCE = hangs, 0.3
            try:
                watched = watch.Watch("none", dict(os.environ))
                begun = time.monotonic()
                for _ in range(50):
                    watched.look()
                self.assertEqual(watched.end("a program"), {})
                self.assertLess(time.monotonic() - begun, 10)
            finally:
                watched.stop()
                watch.SAMPLER, watch.PATIENCE = usual
        result = table.Result("a row")
        result.note({}, True)
        self.assertEqual(result.trouble, ["NVML did not answer"])


class Differences(unittest.TestCase):
    def test_each_fact_that_differs_is_one_sentence(self):
        def fact(name, value, case="pools"):
            return {"case": case, "fact": name, "seen": value, "holds": True}

        here = [fact("a", 1), fact("b", 2), fact("c", 3)]
        there = [fact("a", 1), fact("b", 4), fact("d", 5), fact("e", 6, case="never asked")]
        self.assertEqual(
            facts.differences(here, there),
            [
                "pools: b: 2, and there 4",
                "pools: c: 3, and nothing there",
                "pools: d: nothing, and there 5",
            ],
        )

    def test_half_a_line_is_no_fact(self):
        self.assertEqual(facts.read('{"case":"a","fact":"b","seen":1}\n{"case":"a","fa'), [
            {"case": "a", "fact": "b", "seen": 1}
        ])  # fmt: skip


class Records(unittest.TestCase):
    def test_an_archive_stays_small_and_says_what_it_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            out, files = pathlib.Path(folder, "out"), pathlib.Path(folder, "rows")
            out.mkdir(), files.mkdir()
            (files / "loud.out").write_bytes(b"first" + b"x" * (5 << 20) + b"last")
            (files / "facts.jsonl").write_bytes(b"y" * (1 << 20))
            path = Record(out, files, {}).write()
            with tarfile.open(path) as archive:
                loud = archive.extractfile("gpu-record/rows/loud.out").read()
                whole = archive.extractfile("gpu-record/rows/facts.jsonl").read()
            self.assertTrue(loud.startswith(b"first") and loud.endswith(b"last"))
            self.assertIn(b"bytes are left out", loud)
            self.assertEqual(len(whole), 1 << 20)

    def test_noise_does_not_make_an_archive_too_large(self):
        with tempfile.TemporaryDirectory() as folder:
            out, files = pathlib.Path(folder, "out"), pathlib.Path(folder, "rows")
            out.mkdir(), files.mkdir()
            for number in range(150):
                (files / f"{number}.out").write_bytes(os.urandom(128 << 10))
            path = Record(out, files, {}).write()
            self.assertLess(path.stat().st_size, 16 << 20)

    def test_names_of_files_have_nothing_odd_in_them(self):
        self.assertEqual(slug("victim: 90 % of / free"), "victim-90-of-free")


if __name__ == "__main__":
    unittest.main()
