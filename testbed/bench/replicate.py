"""``testbed bench replicate``: the runs of a paper's page, and the page that is made of them.

``scenarios/papers/<paper>/replication.toml`` lists parts for each size. A part is a scenario with
changes, algorithms and seeds; or a measurement of this machine. What is finished stays in the
directory given, and a second call goes on from there. The page's numbers lie beside it as
``<size>.json``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

from analysis.papers import Record, Results, Sections, between_marks, condensed
from testbed.bench.results import Say, write_json, write_scenario
from testbed.errors import InputError
from testbed.records.manifest import machine_facts
from testbed.records.run_directory import read_json, read_jsonl, to_json
from testbed.runner.experiment import parse_seeds, prepare
from testbed.runner.run import Finished, ParallelTask, side_by_side
from testbed.runner.run import run as carry_out
from testbed.runner.signals import interruptible
from testbed.scenario.load import load
from testbed.scenario.yaml import parse
from testbed.topology import VIRTUAL
from testbed.user_files import data_of

PLAN, PAGE = "replication.toml", "README.md"
SIZES = ("small", "full")
_MOST_PLAN_BYTES = 1 << 20
_FINISHED = "finished.jsonl"
_KEYS = {"name", "group", "scenario", "measure", "algorithms", "seeds", "change", "remove"}


@dataclass(frozen=True, slots=True)
class PagePart:
    """Runs of one scenario, or a measurement. ``group``: what it is called where pages look."""

    name: str
    group: str
    scenario: str | None
    measure: str | None
    algorithms: tuple[str, ...]
    seeds: tuple[int, ...]
    change: Mapping[str, Any]
    remove: tuple[str, ...]
    """Keys of the scenario that are left out, as ``train.pace``."""


def parts(folder: Path, size: str) -> list[PagePart]:
    """Parts of a paper's page. Raises InputError for a plan that is none."""
    path = folder / PLAN
    try:
        plan = tomllib.loads(data_of(path, _MOST_PLAN_BYTES).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(str(error), where=str(path)) from None
    if size not in plan:
        raise InputError(f"no size {size!r}", where=str(path), hint=f"There are: {', '.join(plan)}")
    return [_part(entry, f"{path}: {size}") for entry in plan[size]["parts"]]


def _part(entry: Mapping[str, Any], where: str) -> PagePart:
    if unknown := set(entry) - _KEYS:
        raise InputError(f"unknown {', '.join(sorted(unknown))}", where=where)
    if "name" not in entry or ("scenario" in entry) == ("measure" in entry):
        raise InputError("a part has a name, and a scenario or a measurement", where=where)
    return PagePart(
        name=entry["name"],
        group=entry.get("group", entry["name"]),
        scenario=entry.get("scenario"),
        measure=entry.get("measure"),
        algorithms=tuple(entry.get("algorithms", ())),
        seeds=tuple(parse_seeds(str(entry.get("seeds", "1-10"))) or ()),
        change=entry.get("change", {}),
        remove=tuple(entry.get("remove", ())),
    )


class Replication:
    """One paper's page. ``data``: the directory of data sets, if the scenarios need one."""

    def __init__(
        self,
        folder: Path,
        size: str,
        out: Path,
        *,
        fabric: str = VIRTUAL,
        data: Path | None = None,
        algorithms: Sequence[str] = (),
        epochs: int | None = None,
        seeds: Sequence[int] | None = None,
    ) -> None:
        self.folder, self.size, self.directory = folder, size, out
        self._fabric, self._data, self._epochs = fabric, data, epochs
        self._only, self._seeds = tuple(algorithms), seeds
        self.parts = parts(folder, size)
        self.whole = not (algorithms or epochs or seeds)
        """Every part with all of its runs, as the page needs them."""

    def tasks(self) -> Iterator[tuple[PagePart, ParallelTask]]:
        """Every run with its part. Raises InputError for a scenario that is none."""
        for part in self.parts:
            if part.scenario is None:
                continue
            source = self._written(part)
            if names := self._named(part, source):
                for row in prepare(source, names).algorithms:
                    for seed in self._seeds or part.seeds:
                        yield part, ParallelTask(source, row.name, seed)

    def _named(self, part: PagePart, source: Path) -> list[str]:
        own = part.algorithms or tuple(
            each if isinstance(each, str) else each.name
            for each in load(source).scenario.algorithms
        )
        return [name for name in own if not self._only or name in self._only]

    def _written(self, part: PagePart) -> Path:
        """The part's scenario with its changes, as a file of its own."""
        source = self.folder / str(part.scenario)
        base = parse(data_of(source, _MOST_PLAN_BYTES).decode("utf-8"), str(source)).data
        content = _merged(base, part.change)
        for key in part.remove:
            *above, last = key.split(".")
            within = content
            for name in above:
                within = within[name]
            within.pop(last, None)
        for event in content.get("events", []):
            if "file" in event:
                event["file"] = str((source.parent / event["file"]).resolve())
        train = dict(content["train"])
        if self._data is not None:
            train["data"] = str(self._data.resolve())
        if self._epochs is not None:
            train["stop"] = {"epochs": self._epochs}
        return write_scenario(self.directory / "scenarios", part.name, {**content, "train": train})

    def run(self, say: Say, processes: int = 1) -> Results:
        """Carry out what is not finished yet. Raises what ended a run."""
        begin = monotonic()
        self.directory.mkdir(parents=True, exist_ok=True)
        with interruptible():
            listed = list(self.tasks())
            self._carry_out(listed, say, processes)
            measured = self._measured(say)
        say(f"{len(listed)} runs, {monotonic() - begin:.0f} s")
        return Results(self._groups(listed), measured)

    def _carry_out(
        self, listed: Sequence[tuple[PagePart, ParallelTask]], say: Say, processes: int
    ) -> None:
        known = self._finished()
        left = [(part, task) for part, task in listed if self._key(part, task) not in known]
        say(f"{self.folder.name}: {len(listed)} runs, of which {len(left)} are left")
        if not left:
            return
        tasks = [task for _, task in left]
        with (self.directory / _FINISHED).open("a", encoding="utf-8") as file:
            for count, done in enumerate(self._ended(tasks, processes), 1):
                part, task = left[done.position]
                record = condensed(Path(done.entry["dir"]))
                line = {"key": self._key(part, task), "took_s": done.took_s, "record": record}
                file.write(to_json(line) + "\n")
                file.flush()
                say(
                    f"{count}/{len(left)} {part.name} {task.algorithm} s{task.seed}: "
                    f"{record['verdict']}, {record['time_s']:.2f} s on the {self._fabric} fabric, "
                    f"{done.took_s:.1f} s here"
                )

    def _ended(self, tasks: Sequence[ParallelTask], processes: int) -> Iterator[Finished]:
        if self._fabric == VIRTUAL:
            yield from side_by_side(tasks, self.directory, processes)
            return
        for place, task in enumerate(tasks):
            begin, experiment = monotonic(), prepare(task.source, [task.algorithm], [task.seed])
            (entry,) = carry_out(experiment, self._fabric, self.directory, quiet=True).runs
            yield Finished(place, entry, monotonic() - begin)

    def _key(self, part: PagePart, task: ParallelTask) -> str:
        return f"{part.name} {task.algorithm} {task.seed} {_hash(task.source)}"

    def _finished(self) -> dict[str, dict[str, Any]]:
        path = self.directory / _FINISHED
        if not path.exists():
            return {}
        return {str(line["key"]): line["record"] for line in read_jsonl(path)}

    def _groups(self, listed: Sequence[tuple[PagePart, ParallelTask]]) -> dict[str, list[Record]]:
        known, groups = self._finished(), dict[str, list[Record]]()
        for part, task in listed:
            groups.setdefault(part.group, []).append(known[self._key(part, task)])
        return groups

    def _measured(self, say: Say) -> dict[str, list[Mapping[str, Any]]]:
        results = {}
        for part in self.parts:
            if part.measure is None or self._only:
                continue
            path = self.directory / f"{part.name}.json"
            if not path.exists():
                say(f"measuring {part.name}")
                write_json(path, {"rows": MEASURES[part.measure](part, say)})
            results[part.name] = list(read_json(path)["rows"])
        return results


@cache
def _hash(source: Path) -> str:
    return load(source).hash


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the values of ``change``: mappings within each other, anything else as a
    whole."""
    merged = {key: _copied(value) for key, value in base.items()}
    for key, value in change.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else _copied(value)
    return merged


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def selection_times(part: PagePart, say: Say) -> list[Mapping[str, Any]]:
    """Seconds of every turn and method: one thread, on recorded gradients of a ResNet-18's
    size."""
    from testbed.bench.compress import select

    wanted = {"elements": 11_173_962, "density": 0.01, "turns": 12, **part.change}
    elements, count = int(wanted["elements"]), int(wanted["turns"])
    return select.turns(elements, float(wanted["density"]), count, part.algorithms, say)


MEASURES: Mapping[str, Callable[[PagePart, Say], list[Mapping[str, Any]]]] = {
    "selection": selection_times
}
"""Measurements by name."""


def _kept(results: Results, size: str, paper: str) -> dict[str, Any]:
    """The content of ``<size>.json``."""
    facts = machine_facts()
    machine = {name: facts[name] for name in ("versions", "architecture", "cpu", "commit")}
    return {
        "paper": paper,
        "size": size,
        "machine": machine,
        "groups": results.groups,
        "measured": results.measured,
    }


def read(path: Path) -> Results:
    """Return the results in a ``<size>.json``."""
    content = read_json(path)
    return Results(content["groups"], content["measured"])


def sections(folder: Path, results: Results) -> Sections:
    """The text of every marked part of a paper's page."""
    module = import_module(f"analysis.papers.{folder.name.replace('-', '_')}")
    made: Sections = module.sections(results)
    return made


def write_page(folder: Path, size: str, results: Results) -> list[Path]:
    """Write ``<size>.json`` and the page: between marks of the README, or as ``full.md``."""
    made = sections(folder, results)
    numbers = folder / f"{size}.json"
    numbers.write_text(to_json(_kept(results, size, folder.name)) + "\n", encoding="utf-8")
    if size == "small":
        page = folder / PAGE
        text = between_marks(page.read_text("utf-8"), made)
    else:
        page = folder / f"{size}.md"
        text = "\n\n".join([f"# {folder.name}: size {size}", *made.values()]) + "\n"
    page.write_text(text, encoding="utf-8")
    return [numbers, page]
