"""Verbs that read records alone. ``testbed report``: table, figures and an HTML page; ``testbed
export``: the formats of other programs; ``testbed timeline``: what every node of a run did when, as
a trace to look at and as a figure.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import options
from testbed.errors import InputError, printable
from testbed.records.run_directory import readable

if TYPE_CHECKING:
    from analysis.load import Run


Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN…", help="Run directories, or comparisons/<…> for all their runs."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Where to write; a single comparison's own directory by default."),
]


def report(runs: Runs, out: Out = None, as_json: options.Json = False) -> None:
    """Draw every figure and the table of some runs, from their records alone."""
    with readable(runs):
        _report(runs, out, as_json)


def _report(runs: list[Path], out: Path | None, as_json: bool) -> None:
    from analysis.load import load_groups
    from analysis.report import sheet_of, write_groups
    from testbed.records.run_directory import to_json

    groups = load_groups(runs)
    files = write_groups(groups, out or _default(runs), *_against(runs))
    rows = [sheet_of(group).rows(group) for group in groups]
    if as_json:
        table = [row for own in rows for row in own]
        options.print_json(json.loads(to_json({"runs": table, "files": files})))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(width=options.table_width())
    for group, table in zip(groups, rows, strict=True):
        shown, about = sheet_of(group).rich_table(table), group[0].manifest
        if len(groups) > 1:
            shown.title = Text(printable(f"{about['scenario']} on {about['fabric']}"))
        console.print(shown)
    print(f"report: {files[-1].resolve().as_uri()}", file=sys.stderr)


def _against(runs: list[Path]) -> tuple[str | None, float]:
    """Baseline and margin with which a comparison was made, where it alone is drawn."""
    from analysis import MARGIN
    from analysis.comparison import COMPARED
    from testbed.records.run_directory import read_json

    path = runs[0] / COMPARED
    known = read_json(path) if len(runs) == 1 and path.is_file() else {}
    baseline, margin = known.get("baseline"), known.get("margin")
    return baseline, float(margin) if isinstance(margin, int | float) else MARGIN


def _default(runs: list[Path]) -> Path:
    from testbed.records.run_directory import COMPARISON

    alone = len(runs) == 1 and (runs[0] / COMPARISON).exists()
    return runs[0] if alone else Path("report")


Format = Annotated[
    str,
    typer.Option("--to", help="tensorboard, wandb, mlflow, csv or parquet.", metavar="FORMAT"),
]
Exported = Annotated[Path, typer.Option("--out", help="Folder to write into.", metavar="DIR")]


def export(
    runs: Runs, to: Format, out: Exported = Path("export"), as_json: options.Json = False
) -> None:
    """Write the records of some runs for TensorBoard, W&B, MLflow, or as tables."""
    with readable(runs):
        from analysis.exports import export as written
        from analysis.load import load_all

        loaded = {run.path: run for path in runs for run in load_all([path])}
        files = [str(path) for path in written([*loaded.values()], to, out)]
    if as_json:
        options.print_json({"format": to, "files": files})
    else:
        print("\n".join(files))


RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
Steps = Annotated[
    str | None,
    typer.Option(
        "--steps",
        help=(
            "3, or 3:6 for 3 to 6, 3: and :6. Without it the trace has all, the figure the "
            "middle one."
        ),
        metavar="STEPS",
    ),
]
TraceFile = Annotated[Path, typer.Option("--out", help="The trace to write.", metavar="FILE")]
Figure = Annotated[
    Path | None,
    typer.Option("--figure", help="Figure to draw, too (.png, .pdf, .svg).", metavar="FILE"),
]
Workers = Annotated[
    int, typer.Option("--workers", help="So many workers are in the figure.", min=1, metavar="N")
]
Kineto = Annotated[
    list[str] | None,
    typer.Option(
        "--kineto",
        help="Trace of torch.profiler to merge, after NODE= where it does not tell its rank.",
        metavar="[NODE=]FILE",
    ),
]


def timeline(
    run: RunDir,
    steps: Steps = None,
    out: TraceFile = Path("timeline.json"),
    figure: Figure = None,
    workers: Workers = 4,
    kineto: Kineto = None,
    as_json: options.Json = False,
) -> None:
    """Write when each node computed, compressed, sent and waited, for Perfetto or chrome://tracing;
    draw a step."""
    with readable([run]):
        _timeline(run, steps, out, figure, workers, kineto or [], as_json)


def _timeline(
    run: Path,
    steps: str | None,
    out: Path,
    figure: Path | None,
    workers: int,
    kineto: Sequence[str],
    as_json: bool,
) -> None:
    from analysis.timeline import chosen, middle
    from analysis.trace_events import profiler_trace, trace
    from testbed.records.run_directory import to_json

    if figure is not None:
        options.check_figure(figure, "--figure")
        from analysis.figures.timeline import View, save_view
    loaded = _load(run)
    if loaded.is_job and (steps is not None or figure is not None):
        hint = "The trace has the whole job; `testbed report` draws its steps"
        raise InputError(
            "a job's steps have no phases of ours", where="--steps, --figure", hint=hint
        )
    kept = [] if loaded.is_job else chosen(loaded, *bounds(steps))
    content = trace(loaded, kept, [profiler_trace(loaded, text) for text in kineto])
    options.write_text(out, to_json(content))
    if figure is not None:
        drawn = [middle(loaded)] if steps is None else kept
        save_view(View(loaded, tuple(drawn), workers), figure)
    said = {
        "trace": str(out),
        "figure": None if figure is None else str(figure),
        "steps": kept,
        "events": len(content["traceEvents"]),
        "buckets": bool(loaded.events.get("bucket")),
    }
    print(json.dumps(said, indent=2) if as_json else "\n".join(_described(said)))


def bounds(text: str | None) -> tuple[int | None, int | None]:
    """First and last step of ``--steps``, both included; None: no bound. Raises InputError."""
    if text is None:
        return None, None
    match = re.fullmatch(r"(\d*)(:?)(\d*)", text.strip())
    if match is None or not any(match.group(1, 3)) or (match[3] and not match[2]):
        hint = "Such as 3, 3:6, 3: or :6"
        raise InputError(f"{text!r} is no range of steps", where="--steps", hint=hint)
    first = int(match[1]) if match[1] else None
    last = first if not match[2] else int(match[3]) if match[3] else None
    return first, last


def _load(directory: Path) -> Run:
    from analysis.load import load
    from testbed.records.run_directory import COMPARISON

    if (directory / COMPARISON).exists():
        raise InputError(
            f"{str(directory)!r} is a comparison",
            where="RUN",
            hint=f"Give one of its runs: they are listed in its {COMPARISON}",
        )
    return load(directory)


def _described(said: Mapping[str, object]) -> list[str]:
    steps = said["steps"]
    assert isinstance(steps, list)
    which = f"steps {steps[0]} to {steps[-1]}" if steps else "the job"
    lines = [
        f"{said['trace']}: {said['events']} events of {which}; "
        "open it in ui.perfetto.dev or chrome://tracing"
    ]
    if steps and not said["buckets"]:
        lines.append("no record of buckets: gradients travelled whole, and a step has phases only")
    if said["figure"] is not None:
        lines.append(f"figure   {said['figure']}")
    return lines
