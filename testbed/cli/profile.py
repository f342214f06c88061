"""``testbed profile``: how long each layer of a model computes, measured here or estimated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli import options
from testbed.errors import InputError
from testbed.runner.manifest_writer import estimated_file, measured_file
from testbed.scenario.load import load
from testbed.scenario.model import Train
from testbed.scenario.profile import ProfileFile

if TYPE_CHECKING:
    from rich.table import Table


Given = Annotated[
    Path | None, typer.Argument(help="Scenario whose model it is.", show_default=False)
]
Model = Annotated[str | None, typer.Option("--model", help="Another model.", metavar="NAME")]
Task = Annotated[str | None, typer.Option("--task", help="Another task.", metavar="NAME")]
Width = Annotated[
    float | None,
    typer.Option(
        "--width", help="Another width factor.", min=0.01, max=64, callback=options.finite
    ),
]
Batch = Annotated[
    int | None, typer.Option("--batch", help="Other samples a step.", min=1, max=65_536)
]
Device = Annotated[str, typer.Option("--device", help="What to measure: cpu, cuda.")]
Threads = Annotated[
    int, typer.Option("--threads", help="Threads to compute with.", min=1, max=1024)
]
Passes = Annotated[
    int, typer.Option("--passes", help="How many passes count.", min=1, max=10_000, metavar="N")
]
Estimate = Annotated[
    str | None,
    typer.Option("--estimate", help="Estimate for this accelerator: v100.", metavar="NAME"),
]
Out = Annotated[Path | None, typer.Option("--out", help="The file to write.", metavar="FILE")]


def profile(
    scenario: Given = None,
    model: Model = None,
    task: Task = None,
    width: Width = None,
    batch: Batch = None,
    device: Device = "cpu",
    threads: Threads = 1,
    passes: Passes = 11,
    estimate: Estimate = None,
    out: Out = None,
    as_json: options.Json = False,
) -> None:
    """Time every layer of a model, and write it as a file for `train.profile`."""
    train = _train(scenario, {"model": model, "task": task, "width": width, "batch": batch})
    if device not in ("cpu", "cuda"):
        raise InputError(f"unknown device {device!r}", where="--device", hint="Known: cpu, cuda")
    if estimate is None:
        file = measured_file(train, device, threads, passes)
    else:
        file = estimated_file(train, estimate)
    if out is not None:
        options.write_text(out, file.text(), folders=True)
    if as_json:
        print(file.text(), end="")
        return
    _show(file, out)


def _train(scenario: Path | None, changes: dict[str, Any]) -> Train:
    """The scenario's, or the default one, with ``changes``. The profile that a scenario names may
    be the one to be made."""
    given = {key: value for key, value in changes.items() if value is not None}
    train = Train() if scenario is None else load(scenario, timed=False).scenario.train
    return train.model_copy(update=given)


def _show(file: ProfileFile, out: Path | None) -> None:
    from rich.console import Console

    console = Console(width=options.table_width(), highlight=False)
    console.print(_table(file))
    where = "for a" if file.source == "estimated" else "on"
    console.print(f"{file.source} {where} {file.device}: {file.about}", markup=False)
    if out is not None:
        console.print(f"written to {out}", markup=False)


def _table(file: ProfileFile) -> Table:
    from rich.table import Column, Table

    numbers = ("parameters", "forward, ms", "backward, ms", "share")
    columns = [Column(title, justify="right") for title in numbers]
    title = f"{file.model} (width {file.width:g}) on {file.task}, {file.batch} samples a step"
    table = Table("layer", *columns, title=title, box=None)
    for layer in file.layers:
        share = (layer.forward_s + layer.backward_s) / file.total_s
        table.add_row(
            layer.name or "(the model's own)",
            f"{layer.parameters or 0}",
            *_ms(layer.forward_s, layer.backward_s),
            f"{share:.1%}",
        )
    forward_s = sum(layer.forward_s for layer in file.layers)
    parameters = sum(layer.parameters or 0 for layer in file.layers)
    table.add_row("all", f"{parameters}", *_ms(forward_s, file.total_s - forward_s), "100.0%")
    return table


def _ms(*times_s: float) -> list[str]:
    return [f"{1e3 * time_s:.3f}" for time_s in times_s]
