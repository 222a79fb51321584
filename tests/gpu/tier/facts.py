"""The facts of the conformance cases: which documented ones do not hold, and where two machines differ."""

import json
import os
import subprocess
import tarfile

from tier.machine import Share
from tier.table import Result

# What needs no context: looking entry points up, and what works before one is there.
LOOK_UPS = ["starting", "driver_lookup", "entry_points"]
SHARE = Share(mib=8192)


def rows(sim_facts):
    """The look-ups come first, as they take seconds; all cases later."""
    look_ups = [
        ("look-ups", conformance(LOOK_UPS, None, 30, sim_facts)),
        ("look-ups limited", conformance(LOOK_UPS, SHARE, 30, None)),
    ]
    whole = [
        ("conformance", conformance([], None, 90, sim_facts)),
        ("conformance limited", conformance([], SHARE, 90, None)),
    ]
    return look_ups, whole


def conformance(cases, share, timeout, sim_facts):
    def row(machine, name):
        program = machine.programs / "apportion-conformance"
        words = [program, "--timeout", "20", *cases]
        outcome = machine.run(name, words, share=share, timeout=timeout)
        result = Result.of(name, outcome, bool(share))
        if not result.is_begun:
            return result
        facts = read(outcome.output)
        kept = machine.files / f"{name.replace(' ', '-')}.jsonl"
        kept.write_text("".join(json.dumps(fact) + "\n" for fact in facts))
        _judge(result, outcome, facts)
        there = read(sim_facts.read_text()) if sim_facts and not machine.sim else []
        apart = differences(facts, there, cases)
        if there:
            result.remark += f", {len(apart)} otherwise than simulated"
            result.more["differences"] = apart
        return result

    return row


def _judge(result, outcome, facts):
    """Each documented fact that does not hold is named, with what was seen instead of what."""
    result.remark = f"({outcome.last_words.removeprefix('apportion-conformance: ')})"
    if outcome.status == 0 and facts:
        return
    for fact in facts:
        if not fact["holds"]:
            wanted = f" instead of {json.dumps(fact['wanted'])}" if "wanted" in fact else ""
            result.trouble.append(f"{fact['case']}: {fact['fact']}: {json.dumps(fact['seen'])}{wanted}")
    result.trouble.append(outcome.last_words)


def read(text):
    """The facts in lines of JSON; a program that was ended may have left half a line."""
    facts = []
    for line in text.splitlines():
        if line.startswith("{") and line.endswith("}"):
            try:
                fact = json.loads(line)
            except ValueError:
                continue
            if "case" in fact and "fact" in fact:
                facts.append(fact)
    return facts


def differences(here, there, cases=()):
    """One sentence for each fact that is not the same; `cases` are those that were asked."""
    one, other = ({(fact["case"], fact["fact"]): fact["seen"] for fact in facts} for facts in (here, there))
    asked = set(cases) or {case for case, _ in one}
    said = []
    for key in [*one, *(key for key in other if key not in one and key[0] in asked)]:
        name = ": ".join(key)
        if key not in other:
            said.append(f"{name}: {json.dumps(one[key])}, and nothing there")
        elif key not in one:
            said.append(f"{name}: nothing, and there {json.dumps(other[key])}")
        elif one[key] != other[key]:
            said.append(f"{name}: {json.dumps(one[key])}, and there {json.dumps(other[key])}")
    return said


def of_record(path):
    """Rows of facts in an archive, or the facts of a file of lines, by the row's name."""
    if not tarfile.is_tarfile(path):
        return {"conformance": read(path.read_text())}
    found = {}
    with tarfile.open(path) as archive:
        for entry in archive:
            name = entry.name.rpartition("/")[2]
            if entry.isfile() and name.endswith(".jsonl"):
                found[name.removesuffix(".jsonl")] = read(archive.extractfile(entry).read().decode())
    return found


def simulated(given, scratch):
    """The facts of the simulated driver: those in the pack, or asked now."""
    if given.sim_facts.exists():
        return read(given.sim_facts.read_text())
    program = given.programs / "apportion-conformance"
    words = [given.staged / "bin/apportion", "sim", "--", program]
    environment = dict(os.environ, APPORTION_DIR=str(scratch / "instance"))
    done = subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True)
    return read(done.stdout)


def compare(record, other, titles):
    """Prints where the facts of a record are not those of another; the number of differences."""
    count = 0
    for row, facts in sorted(of_record(record).items()):
        there = other.get(row, other["conformance"] if "conformance" in other else [])
        cases = {fact["case"] for fact in facts}
        there = [fact for fact in there if fact["case"] in cases]
        apart = differences(facts, there)
        count += len(apart)
        print(f"{row}: {len(facts)} facts, {len(apart)} otherwise in {titles}")
        for line in apart:
            print(f"  {line}")
    return count
