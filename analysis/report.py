"""Figures, table and a report that is one HTML file, from run directories."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from types import ModuleType
from typing import Any

from analysis import job_tables, tables
from analysis.figures import figures_of
from analysis.load import Run, load_all
from analysis.style import save
from testbed.records.run_directory import write_atomically


def make_figures(run_dirs: Iterable[Path], out: Path) -> list[Path]:
    """Draw every figure of the runs into ``out``. Returns PNG, PDF and CSV of each.

    A comparison's directory stands for its runs. Raises InputError for what is not a run.
    """
    return _figures(load_all(run_dirs), out)


def write_report(run_dirs: Iterable[Path], out: Path) -> list[Path]:
    """``table.csv``, ``figures/`` and ``report.html`` in ``out``; ``layers.csv`` of runs in
    buckets. Returns all paths, the report last."""
    runs = load_all(run_dirs)
    figures = _figures(runs, out / "figures")
    sheets = {"table.csv": sheet_of(runs).rows(runs), "layers.csv": tables.layer_rows(runs)}
    written = [
        write_atomically(out / name, tables.to_csv(rows)) for name, rows in sheets.items() if rows
    ]
    page = write_atomically(out / "report.html", render(runs, figures))
    return [*figures, *written, page]


def render(runs: Sequence[Run], figures: Iterable[Path]) -> str:
    """The report as HTML that needs nothing beside it: pictures are inside."""
    template = Template(files("analysis").joinpath("report.html").read_text(encoding="utf-8"))
    sheet, rows = sheet_of(runs), sheet_of(runs).rows(runs)
    explained = f"<p>{sheet.EXPLAINED}</p>" if sheet.EXPLAINED else ""
    return template.substitute(
        title=escape(str(runs[0].manifest["scenario"])),
        hash=escape(str(runs[0].manifest["scenario_hash"])[:8]),
        head="".join(f"<th>{heading}</th>" for heading in sheet.HEADINGS),
        rows="\n".join(_row(row, sheet.cells_of(row)) for row in rows),
        reasons=explained + _reasons(runs) + _how_known(runs),
        layers=_layers(runs),
        figures="\n".join(_picture(path) for path in figures if path.suffix == ".png"),
        facts="\n".join(_fact(name, value) for name, value in facts(runs).items()),
    )


def facts(runs: Sequence[Run]) -> dict[str, str]:
    """Return the conditions that the manifests give, by name; several values where runs differ."""
    collected: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in _facts(run).items():
            collected.setdefault(name, {})[value] = None
    return {name: "; ".join(values) for name, values in collected.items()}


def _figures(runs: Sequence[Run], out: Path) -> list[Path]:
    return [
        path
        for module in figures_of(runs)
        for path in save(out, module.NAME, runs, module.data, module.draw)
    ]


def _facts(run: Run) -> dict[str, str]:
    manifest, machine = run.manifest, run.manifest["machine"]
    versions = machine.get("versions", {})
    workers = sum(node["role"] == "worker" for node in manifest["nodes"].values())
    cpu, memory, commit = (
        machine.get("cpu") or {},
        machine.get("memory_bytes"),
        machine.get("commit"),
    )
    return {
        "Nodes": f"{workers} workers, {len(manifest['nodes']) - workers} server",
        **_command(run),
        "Fabric": str(manifest["fabric"]),
        "Congestion control": str(
            manifest["congestion"] or machine.get("congestion_default") or "unknown"
        ),
        "Dilation": f"{manifest['dilation']:g}. {manifest['tcp_timers']}",
        "Processor": f"{cpu.get('model') or 'unknown'}, {cpu.get('count')} processors",
        "Memory": "unknown" if not memory else f"{memory / 2**30:.1f} GiB",
        "Kernel": str(machine.get("kernel")),
        "Versions": ", ".join(f"{name} {number}" for name, number in versions.items() if number),
        "Commit": "not a checkout"
        if not commit
        else commit["hash"] + (" with changes" if commit["dirty"] else ""),
        "Started": str(manifest["started_utc"]),
        "Records": str(run.path),
    }


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


def _row(row: dict[str, Any], own: Sequence[str]) -> str:
    return f'<tr class="{escape(str(row["verdict"]))}">{_cells(own)}</tr>'


def _cells(cells: Sequence[str]) -> str:
    return "".join(f"<td>{escape(cell)}</td>" for cell in cells)


def _reasons(runs: Sequence[Run]) -> str:
    items = [
        f"<li><b>{escape(f'{run.algorithm} s{run.seed}')}</b> ({escape(run.verdict)}): "
        f"{escape(reason)}</li>"
        for run in runs
        for reason in run.summary["reasons"]
    ]
    return f"<h2>Reasons</h2>\n<ul>{''.join(items)}</ul>" if items else ""


def _how_known(runs: Sequence[Run]) -> str:
    """Describe how the steps of jobs are known."""
    items = [
        f"<li><b>{escape(run.algorithm)}</b>: {escape(run.known.reason)}</li>"
        for run in runs
        if run.is_job
    ]
    return f"<h2>How steps are known</h2>\n<ul>{''.join(items)}</ul>" if items else ""


def _layers(runs: Sequence[Run]) -> str:
    """The table of layers; empty where no gradients travelled in buckets."""
    rows = tables.layer_rows(runs)
    if not rows:
        return ""
    head = "".join(f"<th>{heading}</th>" for heading in tables.LAYER_HEADINGS)
    body = "\n".join(f"<tr>{_cells(tables.layer_cells(row))}</tr>" for row in rows)
    return (
        "<h2>Layers</h2>\n<p>Up: per worker and step, without frames' headers.</p>\n"
        f'<div class="scroll"><table class="layers">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    name = escape(path.stem.replace("_", " "))
    return f'<figure><img alt="{name}" src="data:image/png;base64,{data}"></figure>'


def _fact(name: str, value: str) -> str:
    return f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
