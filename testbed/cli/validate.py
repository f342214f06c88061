"""``testbed validate``: whether a scenario and its traces are right, and what they need of a
kernel; ``testbed init``: a scenario to start from, with a trace of its own.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.cli import options
from testbed.errors import InputError, brief
from testbed.runner.exec.launch_spec import check_nodes
from testbed.runner.manifest_writer import check_data, check_fits, in_a_sentence, overlaps, pacing
from testbed.scenario.expand import expand
from testbed.scenario.load import Loaded, load
from testbed.scenario.model import Derived
from testbed.scenario.validate_links import kernel_needs

_OPTIONAL = {"hosts": "host", "racks": "rack", "flows": "flow"}


def validate(
    scenario: options.Scenario, for_exec: options.ForExec = False, as_json: options.Json = False
) -> None:
    """Check SCENARIO and its traces; nothing is started."""
    loaded = load(scenario, trains=not for_exec)
    if for_exec:
        check_nodes(loaded)
    facts = summary(loaded) | ({} if for_exec else training(loaded))
    facts["notes"] = notes(loaded, trains=not for_exec)
    if as_json:
        options.print_json(facts)
        return
    counts = [
        (facts["servers"], "server"),
        (facts["workers"], "worker"),
        *((facts[key], noun) for key, noun in _OPTIONAL.items() if facts[key]),
        (facts["events"], "event"),
        (len(facts["traces"]), "trace"),
    ]
    listed = [f"{number} {noun}{'s' * (number != 1)}" for number, noun in counts]
    valid = "valid for `testbed exec`" if for_exec else "valid"
    print(f"{scenario}: {valid}; {', '.join(listed)}")
    if not for_exec:
        seeds = ", ".join(map(str, facts["seeds"]))
        print(f"algorithms: {', '.join(facts['algorithms'])}; seeds: {seeds}")
    if sentence := in_a_sentence(facts.get("pacing")):
        print(sentence)
    for need in facts["needs"]:
        print(f"needs {need}")
    for note in facts["notes"]:
        print(f"note: {note}")


def notes(loaded: Loaded, *, trains: bool, real: bool = True) -> list[str]:
    """Return what a run of ``loaded`` would be refused for here and now, a sentence each.

    ``real``: on real links, for which this kernel is asked, too.
    """
    lacking: list[str] = []
    if trains:
        data = loaded.scenario.train.data
        try:
            check_data(loaded, data and str((loaded.source.parent / data).resolve()))
        except InputError as error:
            lacking.append(str(error))
    with suppress(ImportError):  # of pyroute2: without it there are no real links
        if real:
            from testbed.runner.preflight import shortfalls

            lacking += [f"on real links here: {error}" for error in shortfalls(loaded)]
    return lacking


def summary(loaded: Loaded) -> dict[str, Any]:
    """Return what ``validate --json`` prints of nodes, links and what happens to them."""
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


Directory = Annotated[Path, typer.Argument(help="Where to; made if it is not there.")]


def _examples() -> list[str]:
    """Return the names of the scenarios that come with the package."""
    from testbed.host.paths import shipped

    return sorted(path.stem for path in shipped("scenarios").glob("*.yaml"))


Example = Annotated[
    str | None,
    typer.Option(
        "--example",
        help="Copy this scenario of the package's instead, with its traces: demo, outage, …",
        metavar="NAME",
        autocompletion=options.beginning(_examples),
    ),
]


def init(directory: Directory = Path(), example: Example = None) -> None:
    """Write a scenario to start from, and a trace, into DIRECTORY. Nothing is overwritten."""
    files = {directory / name: text for name, text in _shipped(example).items()}
    for path in files:
        if path.exists():
            raise InputError(
                "there is such a file already", where=str(path), hint="Name another directory"
            )
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", where=str(error.filename or directory)
        ) from None
    print(*files, sep="\n")


def _shipped(example: str | None) -> dict[str, str]:
    """Return the texts of a scenario of the package's (of a small one, where none is named) and of
    its traces, by their paths. Raises InputError with the known names."""
    from testbed.host.paths import shipped

    if example is None:
        source = shipped("examples", "init", "scenario.yaml")
    elif example in (known := _examples()):
        source = shipped("scenarios", f"{example}.yaml")
    else:
        hint = f"Give one of {', '.join(known)}"
        raise InputError(f"no scenario is called {brief(example)}", where="--example", hint=hint)
    names = [source.name, *load(source, trains=False).traces]
    return {each: (source.parent / each).read_text(encoding="utf-8") for each in names}
