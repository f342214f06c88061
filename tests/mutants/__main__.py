"""Mutation check: how many small changes of the product its unit tests find. `make mutants`.

cosmic-ray's operators, and four of ours, make the changes (``mutants.toml``). Its own way of trying them, a process
for each that imports the package and runs a list of tests, would take a day; here each is tried in a fork, by the
tests that reach its line, the quickest first.

Ends with 1 if a group has fewer killed than it must. Survivors that ``survivors.txt`` does not explain are listed.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import random
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.update(
    dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
)

import pytest
from hypothesis import HealthCheck, Phase, settings
from measure import ARGUMENTS, Reach, measure

from mutants import Mutant, mutants_of
from report import KILLED, report
from trial import InFunctions, Trials, on_import

LANES = ("functions", "import")
HERE, BUILD = Path(__file__).parent, Path("build/mutants")

settings.register_profile(
    "mutants",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=30,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),  # nobody reads the example: no time to make it small
)


@dataclass(frozen=True, slots=True)
class Group:
    """Files to be mutated, and the tests that may kill their mutants."""

    name: str
    sources: list[str]
    tests: list[str]

    @classmethod
    def of(cls, name: str, patterns: dict[str, list[str]]) -> Group:
        """Read its patterns: of paths, and of what follows ``test_`` in the names of unit tests."""
        names = (f"tests/unit/test_{each}.py" for each in patterns["tests"])
        return cls(name, _files(patterns["sources"]), _files(names))


def _files(patterns: Iterable[str]) -> list[str]:
    """The files that fit any of the patterns. A group that has lost its files would have no survivors."""
    files: set[str] = set()
    for pattern in patterns:
        fitting = {str(path) for path in Path().glob(pattern)}
        if not fitting:
            sys.exit(f"mutants.toml: there is no file {pattern}")
        files |= fitting
    return sorted(files)


def main() -> int:
    """Read the arguments, try the mutants, report."""
    options = _options()
    table = tomllib.loads((HERE / "mutants.toml").read_text())
    groups = [Group.of(name, patterns) for name, patterns in table["groups"].items()]
    BUILD.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, list[tuple[Mutant, str]]] = {}
    totals: dict[str, int] = {}
    keys: dict[str, set[str]] = {}  # of each file
    for group in groups:
        if not options.group or group.name in options.group:
            mutants = _mutants(group, table["operators"])
            totals[group.name] = len(mutants)
            for mutant in mutants:
                keys.setdefault(mutant.path, set()).add(mutant.key)
            chosen = _chosen(group, mutants, options, table["sample"])
            counted = mutants if options.again else chosen
            outcomes[group.name] = _tried(group, chosen, counted, table, options.processes)

    def gone(key: str) -> bool:
        path = key.split(" ", maxsplit=1)[0]
        return not Path(path).exists() or (path in keys and key not in keys[path])

    return report(outcomes, totals, table["share"], HERE / "survivors.txt", gone)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--group", action="append", help="only this group; may be repeated")
    parser.add_argument("--only", default="*", help="only mutants whose key fits this pattern")
    parser.add_argument("--sample", type=int, help="so many of each group; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument(
        "--lane", choices=LANES, help="only mutants in functions, or those that act on import"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="only what the last pass did not kill, or did not come to",
    )
    parser.add_argument("--processes", type=int, default=1)
    return parser.parse_args()


def _chosen(
    group: Group, mutants: list[Mutant], options: argparse.Namespace, usual: int
) -> list[Mutant]:
    if options.again:
        killed = {key for key, outcome in _results(group).items() if outcome in KILLED}
        mutants = [mutant for mutant in mutants if mutant.key not in killed]
    if options.lane:
        inside = options.lane == "functions"
        mutants = [mutant for mutant in mutants if (mutant.function is not None) == inside]
    mutants = [mutant for mutant in mutants if fnmatch.fnmatchcase(mutant.key, options.only)]
    size = usual if options.sample is None else options.sample
    if not size or len(mutants) <= size:
        return mutants
    picked = set(random.Random(f"{group.name} {options.seed}").sample(range(len(mutants)), size))
    return [mutant for i, mutant in enumerate(mutants) if i in picked]


def _mutants(group: Group, operators: dict[str, list[str]]) -> list[Mutant]:
    names = [*operators["cosmic_ray"], *operators["own"]]
    tool = [HERE / "mutants.py", HERE / "places.py", HERE / "operators.py"]
    found: list[Mutant] = []
    for source in group.sources:
        kept = BUILD / f"{_digest([*map(str, tool), source], names)}.json"
        if not kept.exists():
            made = mutants_of(source, names)
            kept.write_text(json.dumps([asdict(mutant) for mutant in made]))
        found += [_mutant(**fields) for fields in json.loads(kept.read_text())]
    return found


def _mutant(lines: list[int], cut: list[int], put: list[str], **fields: Any) -> Mutant:
    return Mutant(lines=tuple(lines), cut=(cut[0], cut[1]), put=tuple(put), **fields)


def _digest(files: list[str], others: list[str]) -> str:
    digest = hashlib.sha256("\n".join([*files, *others]).encode())
    for file in files:
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:16]


def _reach(group: Group) -> Reach:
    """Measured once for each state of the files and their tests."""
    kept = BUILD / f"reach-{group.name}-{_digest([*group.tests, *group.sources], [])}.json"
    if not kept.exists():
        for old in BUILD.glob(f"reach-{group.name}-*.json"):
            old.unlink()
        _in_forks([partial(_measure, group, kept)])
    return Reach.load(kept)


def _measure(group: Group, kept: Path) -> None:
    measure(group.tests, group.sources).save(kept)


def _tried(
    group: Group,
    mutants: list[Mutant],
    counted: list[Mutant],
    table: dict[str, Any],
    processes: int,
) -> list[tuple[Mutant, str]]:
    """Try ``mutants``; how all of ``counted`` ended, now or the last time."""
    reach, results = _reach(group), BUILD / f"results-{group.name}.jsonl"
    for key in [key for key, seconds in reach.seconds.items() if seconds > table["slow_s"]]:
        del reach.seconds[key]
    work = [(mutant, _tests(mutant, reach)) for mutant in mutants]
    before = _results(group)
    kept = {key: outcome for key, outcome in before.items() if key not in {m.key for m in mutants}}
    with results.open("w") as out:
        for key, outcome in kept.items():
            out.write(json.dumps({"key": key, "outcome": outcome, "killers": []}) + "\n")
    for lane in (_try_in_functions, _try_on_import):
        own = [entry for entry in work if (entry[0].function is None) == (lane is _try_on_import)]
        tested = [entry for entry in own if entry[1]]
        trials = Trials(results, reach.seconds, table["budget_s"])
        shares = [tested[i::processes] for i in range(processes)]
        _in_forks([partial(lane, trials, share) for share in shares if share])
    outcomes, reached = _results(group), {mutant.key for mutant, tests in work if tests}
    return [
        (mutant, outcomes.get(mutant.key, "survived" if mutant.key in reached else "not reached"))
        for mutant in counted
    ]


def _tests(mutant: Mutant, reach: Reach) -> list[str]:
    lines = reach.by_line.get(mutant.path, {})
    if mutant.function is None:
        reached = {test for tests in lines.values() for test in tests} or set(reach.seconds)
    else:
        reached = {test for line in mutant.lines for test in lines.get(line, [])}
    return sorted(reached & reach.seconds.keys())


def _results(group: Group) -> dict[str, str]:
    results = BUILD / f"results-{group.name}.jsonl"
    entries = map(json.loads, results.read_text().splitlines()) if results.exists() else ()
    return {entry["key"]: entry["outcome"] for entry in entries}


def _try_in_functions(trials: Trials, work: list[tuple[Mutant, list[str]]]) -> None:
    files = sorted({test.partition("::")[0] for _, tests in work for test in tests})
    code = pytest.main([*ARGUMENTS, *files], plugins=[InFunctions(trials, work)])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest ended with {code!r}: not all mutants were tried")


def _try_on_import(trials: Trials, work: list[tuple[Mutant, list[str]]]) -> None:
    on_import(trials, work)


def _in_forks(bodies: list[Callable[[], None]]) -> None:
    """Run each in a process of its own: this one imports nothing of the package."""
    children = []
    for body in bodies:
        if (child := os.fork()) == 0:
            code = 1
            try:
                body()
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        children.append(child)
    ended = [os.waitpid(child, 0)[1] for child in children]
    if any(ended):
        sys.exit("the check did not come to its end")


if __name__ == "__main__":
    sys.exit(main())
