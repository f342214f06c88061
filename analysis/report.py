"""Figures, tables and a report that is one HTML file, from run directories.

The page (``page/``) has its scripts, its data and its style inside: it opens from a disk, and asks
no network for anything. Its charts are drawn in the reader's browser by Vega-Lite.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from analysis import MARGIN, job_tables, page_data, page_words, tables
from analysis.comparison import Compared, ComparedOutcome
from analysis.figures import figures_of
from analysis.figures.algorithms import front, phases
from analysis.load import Run, load_all, load_groups, lowest_seeds
from analysis.statistics import times
from analysis.style import save
from testbed.algorithm import Algorithm
from testbed.errors import InputError
from testbed.records.events import PHASES
from testbed.records.run_directory import to_json, write_atomically
from testbed.topology import VIRTUAL

if TYPE_CHECKING:
    from jinja2 import Environment

PAGE = Path(str(files("analysis").joinpath("page")))
SCRIPTS = ("vega", "vega-lite", "vega-embed")
"""Scripts of others in the page, in the order in which they are loaded."""
COMMUNICATION = ("send", "wait", "receive")
"""Phases that are communication."""
RESULT_HEADINGS = (
    "Algorithm",
    "Time",
    "Speed-up",
    "Test accuracy",
    "Up",
    "Down",
    "Mean k",
    "Verdicts",
)
PART_HEADINGS = (
    "Algorithm",
    "Selector",
    "Values",
    "Memory",
    "Controller",
    "Down",
    "Exchange",
    "Further",
    "About",
)
FURTHER = {
    name: getattr(Algorithm(""), name)
    for name in ("buckets", "dense_below", "bucket_bytes", "overlap", "order", "agree")
}
"""Further parts of an algorithm, as they are by default."""


def write_report(
    run_dirs: Iterable[Path], out: Path, baseline: str | None = None, margin: float = MARGIN
) -> list[Path]:
    """Load runs, and write what ``write_groups`` writes. Raises InputError for what is no run."""
    return write_groups(load_groups(run_dirs), out, baseline, margin)


def write_groups(
    groups: Sequence[Sequence[Run]],
    out: Path,
    baseline: str | None = None,
    margin: float = MARGIN,
) -> list[Path]:
    """Write ``table.csv``, ``figures/`` and ``report.html`` into ``out``; ``layers.csv`` of runs in
    buckets. Returns all paths, the report last.

    ``baseline``, ``margin``: as ``compared`` has them. Of several groups of runs that do not
    compare, tables and figures are in a folder for each.
    """
    figures, written = [], []
    for number, runs in enumerate(groups):
        folder = out if len(groups) == 1 else out / f"comparison-{number + 1}"
        figures.append(make_figures(runs, folder / "figures"))
        sheets = {"table.csv": sheet_of(runs).rows(runs), "layers.csv": tables.layer_rows(runs)}
        written += [
            write_atomically(folder / name, tables.to_csv(rows))
            for name, rows in sheets.items()
            if rows
        ]
    names = [[path.relative_to(out) for path in paths] for paths in figures]
    text = render(groups, names, baseline, margin)
    page = write_atomically(out / "report.html", text)
    return [*(path for paths in figures for path in paths), *written, page]


def sentences(run_dirs: Iterable[Path]) -> list[str]:
    """One sentence for each algorithm of runs that compare, as the page has them."""
    runs = load_all(run_dirs)
    return page_words.algorithm_sentences(runs, page_words.outcome(runs))


def render(
    groups: Sequence[Sequence[Run]],
    figures: Sequence[Sequence[Path]] = (),
    baseline: str | None = None,
    margin: float = MARGIN,
) -> str:
    """The report as HTML that needs nothing beside it. ``figures``: files that the page names, of
    each group; relative to it."""
    own = (PAGE / "page.js").read_text(encoding="utf-8")
    scripts = [*(_script(name) for name in SCRIPTS), f"\n{own}"]
    sections = [
        _section(number, runs, figures[number] if figures else (), baseline, margin)
        for number, runs in enumerate(groups)
    ]
    page: str = (
        _templates()
        .get_template("report.html")
        .render(
            title=" and ".join(dict.fromkeys(str(section["title"]) for section in sections)),
            sections=sections,
            overview=_overview(sections),
            style=(PAGE / "page.css").read_text(encoding="utf-8"),
            scripts=scripts,
            policy=_policy(scripts),
            data=[section["data"] for section in sections],
        )
    )
    return page.encode("utf-8", "backslashreplace").decode()  # names of files need not be UTF-8


def _overview(sections: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Time and accuracy of every algorithm in each section; empty without several of results."""
    if sum(bool(section["outcomes"]) for section in sections) < 2:
        return []
    names = dict.fromkeys(name for section in sections for name in section["outcomes"])
    return [(name, [own["outcomes"].get(name, "–") for own in sections]) for name in names]


@cache
def _script(name: str) -> str:
    return "\n" + (PAGE / "vendor" / f"{name}.js").read_text(encoding="utf-8")


def _policy(scripts: Iterable[str]) -> str:
    """The content security policy: scripts with these texts alone, and nothing from anywhere."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _section(
    number: int, runs: Sequence[Run], figures: Iterable[Path], baseline: str | None, margin: float
) -> dict[str, Any]:
    """Everything that the template shows of runs that compare."""
    sheet = sheet_of(runs)
    names = page_data.job_labels(runs) if runs[0].is_job else [run.algorithm for run in runs]
    manifest = runs[0].manifest
    shared = {
        "id": f"c{number + 1}",
        "title": str(manifest["scenario"]),
        "hash": str(manifest["scenario_hash"])[:8],
        "fabric": str(manifest["fabric"]),
        "started": str(manifest.get("started_utc")),
        "job": runs[0].is_job,
        "headings": sheet.HEADINGS,
        "explained": sheet.EXPLAINED,
        "verdicts": Counter(run.verdict for run in runs),
        "runs": [
            _run(run, name, sheet.cells_of(row))
            for run, name, row in zip(runs, names, sheet.rows(runs), strict=True)
        ],
        "facts": facts(runs),
        "figures": _figure_names(figures),
        "scenario": page_words.scenario_text(runs[0]),
        "command": page_words.repeat_command(runs, baseline, margin),
        "layer_headings": tables.LAYER_HEADINGS,
        "layers": [tables.layer_cells(row) for row in tables.layer_rows(runs)],
        "outcomes": {},
        "phase_headings": (),
        "phases": [],
        "set_up": "",
        "stretches": [],
        "parts": [],
        "virtual": str(manifest["fabric"]) == VIRTUAL,
    }
    if runs[0].is_job:
        sentences = page_words.job_sentences(runs, names)
        return {
            **shared,
            "headline": sentences[0] if len(sentences) == 1 else " ".join(sentences[:2]),
            "sentences": sentences,
            "result_headings": (),
            "results": [],
            "data": page_data.section_data(runs, ()),
        }
    result = page_words.outcome(runs, baseline, margin)
    phase_headings, phase_rows = _phases(runs)
    return {
        **shared,
        "headline": page_words.headline(result),
        "sentences": page_words.algorithm_sentences(runs, result),
        "seeds_note": page_words.seeds_note(runs, margin),
        "target_note": page_words.target_note(result),
        "steps_note": page_words.steps_note(runs),
        "set_up": page_words.set_up(runs),
        "stretch_headings": page_data.STRETCH_HEADINGS,
        "stretches": page_data.stretches(runs),
        "part_headings": PART_HEADINGS,
        "parts": _parts(runs),
        "phase_headings": phase_headings,
        "phases": phase_rows,
        "outcomes": {
            own.algorithm: "no run counts"
            if own.time_s.mean is None
            else f"{tables.interval(own.time_s, '{:.1f}', ' s')}, "
            f"{tables.interval(own.accuracy, '{:.3f}')}"
            for own in result.algorithms
        },
        "result_headings": _result_headings(result),
        "results": _results(result, runs),
        "data": page_data.section_data(runs, _result_rows(result), result.target),
    }


def _known(run: Run) -> str:
    return run.verdict if run.verdict in page_words.VERDICTS else "invalid"


def _run(run: Run, name: str, cells: Sequence[str]) -> dict[str, Any]:
    return {
        "name": f"{name} s{run.seed}" if not run.is_job else name,
        "cells": cells,
        "verdict": run.verdict,
        "state": _known(run),
        "trust": page_words.trust(run),
        "reasons": page_words.reasons(run),
        "known": run.known.reason if run.is_job else "",
        "path": str(run.path),
        "disturbances": page_words.disturbances(run),
        "manifest": json.dumps(json.loads(to_json(run.manifest)), indent=2, ensure_ascii=False),
    }


def _result_headings(result: Compared) -> list[str]:
    """With the time to an accuracy, where all algorithms reached one."""
    reached = [f"To {result.target:g}"] if result.target else []
    return [*RESULT_HEADINGS[:3], *reached, *RESULT_HEADINGS[3:]]


def _results(result: Compared, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row per algorithm: its cells, and the number of its first run, to which they lead."""
    places = {run.algorithm: index for index, run in reversed(list(enumerate(runs)))}
    return [
        {
            "cells": [
                own.algorithm,
                tables.interval(own.time_s, "{:.1f}", " s"),
                "baseline" if own.algorithm == result.baseline else times(own.speedup),
                *([tables.time_to_target(own, result.target)] if result.target else []),
                _accuracy(own),
                *tables.size_cells(own),
            ],
            "verdicts": own.verdicts,
            "run": places[own.algorithm],
        }
        for own in result.algorithms
    ]


def _accuracy(own: ComparedOutcome) -> str:
    known = tables.interval(own.accuracy, "{:.3f}")
    judged = own.inferiority and own.accuracy.high is not None
    return f"{known}, {own.inferiority}" if judged else known


def _parts(runs: Sequence[Run]) -> list[list[str]]:
    """A row per algorithm under ``PART_HEADINGS``, from its manifest; none of one that this version
    does not know."""
    cells = []
    for run in lowest_seeds(runs):
        try:
            row = Algorithm.from_json(run.manifest["algorithm"])
        except InputError:
            continue
        own = {name: getattr(row, name) for name in FURTHER}
        changed = [f"{name} {value}" for name, value in own.items() if value != FURTHER[name]]
        cells.append([row.name, *row.parts(), ", ".join(changed) or "–", row.about])
    return cells


def _phases(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Headings and a row per algorithm: milliseconds of each phase that took time, their sum, and
    the share of it that is communication."""
    spent: dict[str, dict[str, float]] = {}
    for row in phases.data(runs):
        spent.setdefault(row["algorithm"], {})[row["phase"]] = row["seconds"]
    names = [name for name in PHASES if any(own[name] for own in spent.values())]
    cells = []
    for algorithm, own in spent.items():
        whole, talk = sum(own.values()), sum(own[name] for name in COMMUNICATION)
        lengths = (f"{1e3 * length:.3g}" for length in (*(own[name] for name in names), whole))
        cells.append([algorithm, *lengths, f"{talk / max(whole, 1e-9):.0%}"])
    return ["Algorithm", *(name.capitalize() for name in names), "In all", "Communication"], cells


def _result_rows(result: Compared) -> list[dict[str, Any]]:
    known = [
        own
        for own in result.algorithms
        if own.time_s.mean is not None and own.accuracy.mean is not None
    ]
    best = front([(own.time_s.mean or 0.0, own.accuracy.mean or 0.0) for own in known])
    return [
        page_data.result_row(
            own.algorithm, own.time_s, own.accuracy, (own.time_s.mean, own.accuracy.mean) in best
        )
        for own in known
    ]


def _figure_names(figures: Iterable[Path]) -> list[tuple[str, list[Path]]]:
    """Files by figure: its name in words, and its forms."""
    names: dict[str, list[Path]] = {}
    for path in figures:
        names.setdefault(path.stem.replace("_", " "), []).append(path)
    return list(names.items())


def facts(runs: Sequence[Run]) -> dict[str, str]:
    """Return the conditions that the manifests give, by name; several values where runs differ."""
    collected: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in _facts(run).items():
            collected.setdefault(name, {})[value] = None
    return {name: "; ".join(values) for name, values in collected.items()}


def make_figures(runs: Sequence[Run], out: Path) -> list[Path]:
    """Draw every figure of the runs into ``out``. Returns PNG, PDF and CSV of each."""
    return [
        path
        for module in figures_of(runs)
        for path in save(out, module.NAME, runs, module.data, module.draw)
    ]


def _facts(run: Run) -> dict[str, str]:
    manifest, machine = run.manifest, run.manifest["machine"]
    versions = machine.get("versions", {})
    cpu, memory, commit = (
        machine.get("cpu") or {},
        machine.get("memory_bytes"),
        machine.get("commit"),
    )
    return {
        "Nodes": page_words.nodes(run),
        **_command(run),
        "Fabric": str(manifest["fabric"]),
        "Congestion control": str(
            manifest["congestion"] or machine.get("congestion_default") or "unknown"
        ),
        "Dilation": f"{manifest['dilation']:g}. {manifest['tcp_timers']}",
        "Processor": f"{cpu.get('model') or 'unknown'}, {cpu.get('count')} processors",
        "Memory": "unknown" if not memory else f"{memory / 2**30:.1f} GiB",
        **_gpus(machine.get("gpus")),
        "Kernel": str(machine.get("kernel")),
        "Versions": ", ".join(f"{name} {number}" for name, number in versions.items() if number),
        "Commit": "not a checkout"
        if not commit
        else commit["hash"] + (" with changes" if commit["dirty"] else ""),
        "Started": str(manifest["started_utc"]),
        "Records": str(run.path),
    }


def _gpus(gpus: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the machine's GPUs, by their label; records made before there were any have none."""
    if not gpus:
        return {}
    return {"GPU": f"{', '.join(gpus['models'])}, driver {gpus['driver'] or 'unknown'}"}


def _command(run: Run) -> dict[str, str]:
    """Return the command that a job started, by its label."""
    if not run.is_job:
        return {}
    row = run.manifest["algorithm"]
    each = "" if (row.get("nproc") or 1) == 1 else f" ({row['nproc']} processes per node)"
    return {"Command": f"{run.algorithm}: {shlex.join(map(str, row['command']))}{each}"}


def sheet_of(runs: Sequence[Run]) -> ModuleType:
    """Return the module that makes the table of such runs."""
    return job_tables if runs[0].is_job else tables
