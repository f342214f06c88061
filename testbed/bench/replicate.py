"""``testbed bench replicate``: the runs of a paper's page, and the page that is made of them.

``scenarios/papers/<paper>/replication.toml`` lists parts for each size. A part is a scenario with
changes, algorithms and seeds, or so many settings of them; or a measurement of this machine. What
is finished stays in the directory given, and a second call goes on from there. The page's numbers
lie beside it as ``<size>.json``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import count, groupby
from pathlib import Path
from random import Random
from statistics import fmean
from time import monotonic
from typing import Any

import numpy as np

from analysis.papers import Results, Sections, between_marks, brief, condensed, decline
from testbed.bench.results import Say, locate_files, write_json, write_scenario
from testbed.control.base import Observation, controllers
from testbed.control.delay_aware import drawn_settings
from testbed.errors import InputError
from testbed.records.manifest import machine_facts
from testbed.records.run_directory import read_json, read_jsonl, to_json
from testbed.records.stored import Record
from testbed.runner.experiment import parse_seeds, prepare
from testbed.runner.run import Finished, ParallelTask, side_by_side
from testbed.runner.run import run as carry_out
from testbed.runner.signals import interruptible
from testbed.scenario.load import load
from testbed.scenario.yaml import parse
from testbed.topology import VIRTUAL
from testbed.traces.rate_trace import RateTrace
from testbed.traces.readers import read as read_trace
from testbed.user_files import data_of

PLAN, PAGE = "replication.toml", "README.md"
GPU = "gpu"
"""The size whose numbers the page has beside its own."""
_MOST_PLAN_BYTES = 1 << 20
_FINISHED = "finished.jsonl"
_Run = tuple[str, int]
"""Algorithm and seed."""
_KEYS = {
    "name",
    "group",
    "scenario",
    "measure",
    "algorithms",
    "seeds",
    "change",
    "remove",
    "settings",
    "skip",
}


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
    skip: int = 0
    """First steps that do not count in a step's time."""
    settings: int = 0
    """Number of settings of the delay-aware family, each with one seed; 0: its algorithms as they
    are, with all seeds."""

    def runs(self, names: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, int]]:
        """Algorithm and seed of every run."""
        for name in names:
            turn = int(name.rpartition("-")[2]) - 1 if self.settings else None
            for seed in seeds if turn is None else [seeds[turn % len(seeds)]]:
                yield name, seed

    def entries(self) -> list[dict[str, Any]]:
        """The algorithms of all settings, as a scenario has them."""
        return [
            {"name": f"{rule}-{number}", "from": rule, "controller": options[rule]}
            for number in range(1, self.settings + 1)
            for options in (drawn_settings(number),)
            for rule in self.algorithms
        ]


def parts(folder: Path, size: str) -> list[PagePart]:
    """Parts of a page, from ``<size>.toml`` where there is one. Raises InputError for no plan."""
    own = folder / f"{size}.toml"
    path = own if own.exists() else folder / PLAN
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
        skip=int(entry.get("skip", 0)),
        settings=int(entry.get("settings", 0)),
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
                rows = [row.name for row in prepare(source, names).algorithms]
                for name, seed in part.runs(rows, self._seeds or part.seeds):
                    yield part, ParallelTask(source, name, seed)

    def _named(self, part: PagePart, source: Path) -> list[str]:
        own = (not part.settings and part.algorithms) or tuple(
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
        locate_files(content, source.parent)
        train = dict(content["train"])
        if self._data is not None:
            train["data"] = str(self._data.resolve())
        if self._epochs is not None:
            train["stop"] = {"epochs": self._epochs}
        if part.settings:
            content["algorithms"] = part.entries()
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

    def left(
        self, listed: Sequence[tuple[PagePart, ParallelTask]]
    ) -> list[tuple[PagePart, ParallelTask]]:
        """The runs that are not finished on this fabric."""
        known = self._finished()
        return [(part, task) for part, task in listed if self._key(part, task) not in known]

    def _carry_out(
        self, listed: Sequence[tuple[PagePart, ParallelTask]], say: Say, processes: int
    ) -> None:
        _end_with_a_line(self.directory / _FINISHED)
        left = self.left(listed)
        say(f"{self.folder.name}: {len(listed)} runs, of which {len(left)} are left")
        if not left:
            return
        tasks, counted = [task for _, task in left], count(1)
        with (self.directory / _FINISHED).open("a", encoding="utf-8") as file:

            def note(done: Finished) -> None:
                part, task = left[done.position]
                record = condensed(Path(done.entry["dir"]), part.skip)
                line = {"key": self._key(part, task), "took_s": done.took_s, "record": record}
                file.write(to_json(line) + "\n")
                file.flush()
                say(
                    f"{next(counted)}/{len(left)} {part.name} {task.algorithm} s{task.seed}: "
                    f"{record['verdict']}, {record['time_s']:.2f} s on the {self._fabric} fabric, "
                    f"{done.took_s:.1f} s here"
                )

            if self._fabric == VIRTUAL:
                for done in side_by_side(tasks, self.directory, processes):
                    note(done)
                return
            for source, same in groupby(enumerate(tasks), key=lambda each: each[1].source):
                self._on_links(source, {task[1:3]: position for position, task in same}, note)

    def _on_links(
        self, source: Path, places: Mapping[_Run, int], note: Callable[[Finished], None]
    ) -> None:
        """One comparison for all runs of a scenario: its nodes start once."""
        names, seeds = (list(dict.fromkeys(each)) for each in zip(*places, strict=True))
        experiment, begin = prepare(source, names, seeds), monotonic()
        rows = {row.name: row for row in experiment.algorithms}

        def over(entry: dict[str, Any]) -> None:
            nonlocal begin
            position = places[entry["algorithm"], entry["seed"]]
            note(Finished(position, entry, monotonic() - begin))
            begin = monotonic()

        order = [(rows[name], seed) for name, seed in places]
        carry_out(experiment, self._fabric, self.directory, quiet=True, order=order, over=over)

    def _key(self, part: PagePart, task: ParallelTask) -> str:
        run = f"{part.name} {task.algorithm} {task.seed} {_hash(task.source)}"
        return run if self._fabric == VIRTUAL else f"{run} {self._fabric}"

    def _finished(self) -> dict[str, dict[str, Any]]:
        path = self.directory / _FINISHED
        if not path.exists():
            return {}
        return {str(line["key"]): line["record"] for line in read_jsonl(path)}

    def _groups(self, listed: Sequence[tuple[PagePart, ParallelTask]]) -> dict[str, list[Record]]:
        known, groups = self._finished(), dict[str, list[Record]]()
        for part, task in listed:
            record = known[self._key(part, task)]
            groups.setdefault(part.group, []).append(brief(record) if part.settings else record)
        return groups

    def _measured(self, say: Say) -> dict[str, list[Mapping[str, Any]]]:
        results = {}
        for part in self.parts:
            if part.measure is None or self._only:
                continue
            path = self.directory / f"{part.name}.json"
            if not path.exists():
                say(f"measuring {part.name}")
                write_json(path, {"rows": MEASURES[part.measure](part, self.folder, say)})
            results[part.name] = list(read_json(path)["rows"])
        return results


def _end_with_a_line(path: Path) -> None:
    """Take away a last line that a kill has cut off."""
    if path.exists():
        with path.open("r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


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


def selection_times(part: PagePart, folder: Path, say: Say) -> list[Mapping[str, Any]]:
    """Seconds of every turn and method: one thread, on recorded gradients of a ResNet-18's
    size."""
    from testbed.bench.compress import select

    del folder
    wanted = {"elements": 11_173_962, "density": 0.01, "turns": 12, **part.change}
    elements, count = int(wanted["elements"]), int(wanted["turns"])
    return select.turns(elements, float(wanted["density"]), count, part.algorithms, say)


def device_facts(part: PagePart, folder: Path, say: Say) -> list[Mapping[str, Any]]:
    """Name of the accelerator, and today's date."""
    del part, folder, say
    import torch

    from testbed.training.replica import configure_torch

    device = configure_torch("cuda", 1)
    name = torch.cuda.get_device_name(device)
    return [{"device": name, "cuda": torch.version.cuda, "date": f"{datetime.now(UTC):%Y-%m-%d}"}]


def family_courses(part: PagePart, folder: Path, say: Say) -> list[Mapping[str, Any]]:
    """Mean density, its decline and the time of every rule in every setting of the family, without
    training: a step takes its computation, the selection, what the links' rate makes of the bytes
    that fixed densities had sent, with noise, and the rest. Means over seeds. Setting 0: our own
    constants."""
    shape = part.change
    trace = read_trace((folder / shape["trace"]).resolve())
    rows = list[Mapping[str, Any]]()
    for number in range(part.settings + 1):
        options = drawn_settings(number) if number else {rule: {} for rule in part.algorithms}
        for rule in part.algorithms:
            courses = [_course(rule, options[rule], seed, shape, trace) for seed in part.seeds]
            mean = {key: float(f"{fmean(each[key] for each in courses):.6g}") for key in courses[0]}
            rows.append({"setting": number, "rule": rule, **mean})
    say(f"{part.settings} settings of {len(part.algorithms)} rules, {len(part.seeds)} seeds each")
    return rows


def _course(
    rule: str, options: Mapping[str, Any], seed: int, shape: Mapping[str, Any], trace: RateTrace
) -> dict[str, float]:
    """A rule in a closed loop with the delays that its densities cause."""
    controller, random = controllers.get(rule)(seed=seed, **options), Random(f"{rule} {seed}")
    up, down = (np.log(np.array(shape[key])).T for key in ("up", "down"))
    now, densities = 0.0, list[float]()
    for step in range(1, int(shape["steps"]) + 1):
        k = controller.density()
        sent, replied = (float(np.exp(np.interp(np.log(k), *each))) for each in (up, down))
        ready = now + shape["computation_s"] + shape["selection_s"]
        trace_s = (ready + seed * shape["offset_s"]) % trace.duration_s
        bits = 8 * shape["workers"] * (sent + replied) * shape["on_wire"]
        delay_s = bits / trace.rate_at(trace_s) * random.gauss(1.0, shape["noise"])
        now = ready + delay_s + shape["other_s"]
        densities.append(k)
        controller.observe(Observation(step, 1, delay_s, 0.0, round(sent), k))
    return {"mean_k": fmean(densities), "decline": decline(densities), "time_s": now}


MEASURES: Mapping[str, Callable[[PagePart, Path, Say], list[Mapping[str, Any]]]] = {
    "selection": selection_times,
    "family": family_courses,
    "device": device_facts,
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
    numbers = folder / f"{GPU}.json"
    if numbers.exists():
        results = replace(results, gpu=read(numbers))
    section_texts: Sections = module.sections(results)
    return section_texts


_DPI = 110
"""Resolution of a page's figures, which lie in the repository."""


def write_figures(folder: Path, results: Results) -> list[Path]:
    """Draw the figures of a paper's page into its folder; none where nothing can be drawn."""
    module = import_module(f"analysis.papers.{folder.name.replace('-', '_')}")
    if not hasattr(module, "figures") or find_spec("matplotlib") is None:
        return []
    import matplotlib as mpl

    from analysis.style import narrows_style, write

    with narrows_style(), mpl.rc_context({"savefig.dpi": _DPI}):
        drawn = {folder / f"{name}.png": each for name, each in module.figures(results).items()}
        for path, figure in drawn.items():
            write(figure, path)
    return list(drawn)


def write_page(folder: Path, size: str, results: Results) -> list[Path]:
    """Write ``<size>.json`` and the page: between marks of the README, with its figures, or as
    ``<size>.md``. Numbers of a GPU also go into the README, if that has numbers of its own."""
    section_texts = sections(folder, results)
    numbers = folder / f"{size}.json"
    numbers.write_text(to_json(_kept(results, size, folder.name)) + "\n", encoding="utf-8")
    if size == "small":
        return [numbers, _write_readme(folder, section_texts), *write_figures(folder, results)]
    page = folder / f"{size}.md"
    text = "\n\n".join([f"# {folder.name}: size {size}", *section_texts.values()]) + "\n"
    page.write_text(text, encoding="utf-8")
    own = folder / "small.json"
    if size != GPU or not own.exists():
        return [numbers, page]
    return [numbers, page, _write_readme(folder, sections(folder, read(own)))]


def _write_readme(folder: Path, section_texts: Sections) -> Path:
    page = folder / PAGE
    page.write_text(between_marks(page.read_text("utf-8"), section_texts), encoding="utf-8")
    return page
