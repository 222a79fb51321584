"""All rows in the order of their worth: whatever a run is cut short by, the best came first."""

import sys
import traceback

from tier import facts, frameworks, timings, victims
from tier.table import Result


def all_rows(sim_facts):
    look_ups, conformance = facts.rows(sim_facts)
    return [
        *look_ups,
        *victims.rows(),
        ("nvidia-smi", frameworks.nvidia_smi),
        *frameworks.rows(frameworks.FIRST),
        *conformance,
        *frameworks.rows(frameworks.OTHERS),
        ("runtime", frameworks.runtime),
        ("captures", frameworks.captures),
        ("two victims at once", victims.two_at_once),
        ("two pytorch at once", frameworks.two_at_once),
        ("timing: calls", timings.calls),
        ("timing: accuracy", timings.accuracy),
        *frameworks.rows(frameworks.VARIANTS),
        ("timing: training step", timings.training),
    ]


def run(machine, chosen, before_each, after_each):
    """Runs rows; each result (a row may have several) goes to `after_each`."""
    for name, row in chosen:
        before_each(name)
        try:
            results = row(machine, name)
        except Exception as error:
            # A mistake of ours costs one row and not those after it.
            traceback.print_exc(file=sys.stderr)
            result = Result(name)
            result.trouble.append(f"the row itself failed: {type(error).__name__}: {error}")
            results = result
        finally:
            machine.sweep()
        after_each(results if isinstance(results, list) else [results])


def chosen(rows, wanted):
    """The rows whose names begin as wanted, or all."""
    return [row for row in rows if not wanted or any(row[0].startswith(name) for name in wanted)]
