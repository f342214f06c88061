"""``testbed compare``: several seeds, runs interleaved, differences paired by seed with intervals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from testbed.cli import options
from testbed.cli.guest import rerun


def compare(
    context: typer.Context,
    scenario: options.Scenario,
    fabric: options.FabricName = "netns",
    algo: options.Algorithms = None,
    seed: options.Seeds = "1-3",
    out: options.Out = Path(),
    as_json: options.Json = False,
    keep: options.Keep = False,
    quiet: options.Quiet = False,
    parallel: options.Parallel = 1,
    guest: options.Guest = False,
) -> None:
    """Run every algorithm with every seed, interleaved, and pair the differences by seed."""
    from analysis.paired import paired
    from testbed.cli.run import present
    from testbed.session.experiment import parse_seeds, prepare
    from testbed.session.run import VIRTUAL, interleaved
    from testbed.session.run import run as run_all

    if guest:
        rerun(context)
    if fabric != VIRTUAL:
        from testbed.fabric.rootless import become_able

        become_able(fabric, keep=keep)
    experiment = prepare(scenario, algo or (), parse_seeds(seed))
    order = interleaved(experiment.algorithms, experiment.seeds)
    comparison = run_all(
        experiment, fabric, out, quiet=quiet, keep_failed=keep, order=order, parallel=parallel
    )
    results = paired(comparison.runs)
    differences = [result.to_json() for result in results]
    path = comparison.directory / "paired.json"
    path.write_text(json.dumps(differences, indent=2) + "\n")
    if as_json:
        json.dump({"runs": comparison.runs, "paired": differences}, sys.stdout, indent=2)
        print()
    else:
        present(comparison, as_json=False)
        for result in results:
            print(result.sentence())
    if comparison.failed:
        raise typer.Exit(1)
