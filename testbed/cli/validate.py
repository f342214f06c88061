"""``testbed validate``: whether a scenario and its traces are right, and what they need of a kernel."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from testbed.cli import options
from testbed.job.fit import check_nodes
from testbed.scenario.expand import expand
from testbed.scenario.load import Loaded, load
from testbed.scenario.model import Derived
from testbed.scenario.needs import kernel_needs
from testbed.session.profiled import check_fits, in_a_sentence, overlaps, pacing

_OPTIONAL = {"hosts": "host", "racks": "rack", "flows": "flow"}


def validate(
    scenario: options.Scenario, for_exec: options.ForExec = False, as_json: options.Json = False
) -> None:
    """Check SCENARIO and its traces; nothing is started."""
    loaded = load(scenario, trains=not for_exec)
    if for_exec:
        check_nodes(loaded)
    found = summary(loaded) | ({} if for_exec else training(loaded))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    counts = [
        (found["servers"], "server"),
        (found["workers"], "worker"),
        *((found[key], noun) for key, noun in _OPTIONAL.items() if found[key]),
        (found["events"], "event"),
        (len(found["traces"]), "trace"),
    ]
    valid = "valid for `testbed exec`" if for_exec else "valid"
    print(f"{scenario}: {valid}; {', '.join(_counted(n, noun) for n, noun in counts)}")
    if not for_exec:
        print(f"algorithms: {', '.join(found['algorithms'])}; seeds: {_listed(found['seeds'])}")
    if held := in_a_sentence(found.get("pacing")):
        print(held)
    for need in found["needs"]:
        print(f"needs {need}")


def summary(loaded: Loaded) -> dict[str, Any]:
    """What ``validate --json`` prints of nodes, links and what happens to them."""
    scenario = loaded.scenario
    roles = Counter(spec.role for spec in expand(scenario))
    return {
        "valid": True,
        "scenario": scenario.name,
        "hash": loaded.hash,
        **{f"{role}s": roles[role] for role in ("server", "worker", "host")},
        "racks": len(scenario.racks),
        "flows": len(scenario.traffic),
        "events": len(scenario.events),
        "traces": {file: trace.duration_s for file, trace in loaded.traces.items()},
        "needs": kernel_needs(scenario),
    }


def training(loaded: Loaded) -> dict[str, Any]:
    """And what it prints of our own training."""
    check_fits(loaded)
    scenario = loaded.scenario
    names = [entry.name if isinstance(entry, Derived) else entry for entry in scenario.algorithms]
    return {
        "algorithms": names,
        "seeds": list(scenario.seeds),
        "pacing": pacing(loaded, by_layer=overlaps(loaded)),
    }


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
