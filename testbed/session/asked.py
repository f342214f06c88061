"""What ``testbed compare`` was asked for: algorithms, seeds and order, anew or as an earlier comparison has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.scenario.load import Loaded, load
from testbed.session.experiment import Experiment, from_loaded, parse_seeds
from testbed.session.resume import Recorded
from testbed.session.sweep import swept

SEEDS = "1-3"


def asked(
    scenario: Path, algorithms: Sequence[str], seed: str | None, *, sweep: bool, earlier: Recorded | None
) -> Experiment:  # fmt: skip
    """The experiment. Raises InputError for flags, or a scenario, that contradict ``earlier``."""
    loaded = load(scenario)
    names = wanted(loaded, algorithms, sweep=sweep)
    if earlier is None:
        return from_loaded(loaded, names, parse_seeds(seed or SEEDS))
    earlier.check(loaded)
    if algorithms or sweep:
        earlier.agree("--algo" if algorithms else "--sweep", names, earlier.algorithms)
    if seed is not None:
        earlier.agree("--seed", parse_seeds(seed), earlier.seeds)
    return from_loaded(loaded, earlier.algorithms, earlier.seeds)


def wanted(loaded: Loaded, algorithms: Sequence[str], *, sweep: bool) -> list[str]:
    """Names of the algorithms: those given or the scenario's, then the densities of a sweep that are not there."""
    own = [each if isinstance(each, str) else each.name for each in loaded.scenario.algorithms]
    names = list(algorithms) or own
    return swept(names) if sweep else names
