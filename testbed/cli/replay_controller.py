"""``testbed replay-controller``: run a run's controllers again on what the workers recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.algorithms import ROWS, Algorithm, check, resolve
from testbed.cli import options
from testbed.control.base import controllers
from testbed.control.replay import Replayed, compare
from testbed.control.seed import controller_seed
from testbed.errors import InputError
from testbed.record.directory import EVENTS, MANIFEST, read_json, read_jsonl
from testbed.record.readable import readable

Run = Annotated[Path, typer.Argument(help="Run directory.", show_default=False)]
Controller = Annotated[
    str | None,
    typer.Option(
        "--controller",
        help="Another controller, or an algorithm's, in open loop.",
        metavar="NAME",
    ),
]
Node = Annotated[str | None, typer.Option("--node", help="One worker only.", metavar="NAME")]


def replay_controller(
    run: Run, controller: Controller = None, node: Node = None, as_json: options.Json = False
) -> None:
    """Run the controllers of RUN again, offline, and compare their densities with the recorded ones.

    The same controller must give the same densities, to the last bit: otherwise exit 1. Another one
    is shown what the recorded one's densities led to (open loop), and nothing is expected of it. Of a
    controller that decides for every layer, the mean by elements is compared.
    """
    recorded, seed = _manifest(run)
    wanted = recorded if controller is None else _wanted(controller)
    same = (wanted.controller, wanted.options) == (recorded.controller, recorded.options)
    make = controllers.get(wanted.controller)
    with readable([run]):
        replays = [
            (name, rank, compare(records, partial(make, seed=controller_seed(seed, 0 if recorded.agree else rank), **wanted.options)))
            for name, rank, records in _workers(run, node)
        ]  # fmt: skip
    if as_json:
        print(json.dumps(_report(run, wanted, same, replays), indent=2))
    else:
        for name, _, replayed in replays:
            print(f"{name}: {_verdict(replayed, same)}")
    if same and not all(replayed.exact for _, _, replayed in replays):
        raise typer.Exit(1)


def _manifest(run: Path) -> tuple[Algorithm, int]:
    """The algorithm and the seed of a run."""
    where = run / MANIFEST
    manifest = read_json(where)
    try:
        algorithm, seed = Algorithm.from_json(manifest["algorithm"]), int(manifest["seed"])
    except (KeyError, TypeError, ValueError, InputError) as error:
        raise InputError(
            f"no algorithm and seed can be read from it: {error}", where=str(where)
        ) from error
    with readable([where]):
        check(algorithm, str(where))
    return algorithm, seed


def _wanted(name: str) -> Algorithm:
    """A controller with its defaults, or an algorithm's with the algorithm's options."""
    if name in controllers and not any(row.name == name for row in ROWS):
        return Algorithm(name, controller=name)
    return resolve(name, where="--controller")


def _workers(run: Path, node: str | None) -> Iterator[tuple[str, int, list[dict[str, Any]]]]:
    """Name, rank and step records of every worker (or of ``node``), by rank."""
    found = {
        int(path.stem.rpartition("-")[2]): [
            record for record in read_jsonl(path) if record.get("kind") == "step"
        ]
        for path in (run / EVENTS).glob("worker-[0-9]*.jsonl")
    }
    names = {
        rank: str(records[0]["node"]) if records else f"worker-{rank}"
        for rank, records in found.items()
    }
    if not found:
        raise InputError("no worker has recorded anything", where=str(run / EVENTS))
    if node is not None and node not in names.values():
        raise InputError(
            f"no worker is called {node!r}",
            where="--node",
            hint=f"Recorded: {', '.join(names.values())}",
        )
    for rank in sorted(found):
        if node in (None, names[rank]):
            yield names[rank], rank, found[rank]


def _verdict(replayed: Replayed, same: bool) -> str:
    """One worker's line."""
    steps, wrong = len(replayed.steps), replayed.mismatches
    if not steps:
        return "no steps recorded"
    if not same:
        mean = sum(replayed.replayed) / steps
        was = sum(replayed.recorded) / steps
        return f"open loop, {steps} steps, mean density {mean:.4g} (recorded {was:.4g})"
    if wrong:
        return f"NOT exact: {len(wrong)} of {steps} steps differ, the first is step {wrong[0]}"
    return f"exact: {steps} steps compared, 0 mismatches"


def _report(
    run: Path, wanted: Algorithm, same: bool, replays: list[tuple[str, int, Replayed]]
) -> dict[str, object]:
    return {
        "run": str(run),
        "controller": wanted.controller,
        "options": wanted.options,
        "open_loop": not same,
        "nodes": [
            {
                "node": name,
                "rank": rank,
                "steps": len(replayed.steps),
                "mismatches": len(replayed.mismatches),
                "exact": replayed.exact if same else None,
                "recorded": replayed.recorded,
                "replayed": replayed.replayed,
            }
            for name, rank, replayed in replays
        ],
    }
