"""Commands over a run's records as somebody hostile hands them on, and what he has done to them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile_cases import ESCAPES, Case, refused

HTML = '[link=http://x]"><script>alert(1)</script>' + ESCAPES


def records(home: Path, run: Path) -> dict[str, Case]:
    """Commands by name over records that ``spoil`` makes, in ``records/<name>/runs/<run>``."""
    folder = home / "records"

    def over(verb: str, name: str, *more: str, whole: bool = False) -> list[str]:
        path = folder / name if whole else folder / name / "runs" / run.name
        return [verb, str(path), *more]

    drawn = ("report", "--out", str(folder / "drawn"))
    cases = {
        name: refused(*over("report", name, *drawn[1:]))
        for name in (
            "report lacks",
            "report types",
            "report pipe",
            "report line",
            "report deep",
            "report verdict",
        )
    }
    draws = {"codes": [0], "folder": str(home / "settings")}
    cases |= {
        "report html": {"arguments": over("report", "report html", "--out", str(folder / "page")), **draws},
        "report linked": {"arguments": over("report", "report linked", "--out", str(folder / "report linked/out")), **draws},
        "report linked folder": refused(
            *over("report", "report linked folder", "--out", str(folder / "report linked folder/out")), words="symbolic link"
        ),
        "comparison of nonsense": refused(*over("report", "comparison of nonsense", *drawn[1:], whole=True)),
        "timeline of nonsense": refused(*over("timeline", "timeline of nonsense")),
        "controller of nonsense": refused(*over("replay-controller", "controller of nonsense")),
        "messages of nonsense": refused("messages", "record", over("", "messages of nonsense")[1], "--out", "x.jsonl"),
        "resume of nonsense": refused(
            "compare", "good.yaml", "--fabric", "sim", "--resume", str(folder / "resume of nonsense")
        ),
    }  # fmt: skip
    return {name: {"folder": str(home / "files"), **case} for name, case in cases.items()}


def spoil(where: Path, run: Path, name: str, outside: Path) -> None:
    """Copy a run's records to ``where``, and do to them what ``name`` says."""
    copy = where / "runs" / run.name
    shutil.copytree(run, copy)
    _SPOILS.get(name, _nonsense)(where, copy, outside)


def _change(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    known = json.loads(file.read_text())
    change(known)
    file.write_text(json.dumps(known))


def _lacks(where: Path, run: Path, outside: Path) -> None:
    del where, outside
    for key in ("machine", "fabric", "congestion"):
        _change(run / "manifest.json", lambda known, key=key: known.pop(key))
    _change(run / "summary.json", lambda known: known.pop("verdict"))


def _types(where: Path, run: Path, outside: Path) -> None:
    del where, outside
    wrong = {"nodes": [[1]], "dilation": "NaN", "algorithm": "x", "seed": {"a": 1}}
    _change(run / "manifest.json", lambda known: known.update(wrong))


def _pipe(where: Path, run: Path, outside: Path) -> None:
    del where, outside
    for name in ("manifest.json", "links.jsonl"):
        (run / name).unlink()
        os.mkfifo(run / name)


def _line(where: Path, run: Path, outside: Path) -> None:
    """A line that has no end."""
    del where, outside
    (run / "links.jsonl").write_bytes(b"")
    os.truncate(run / "links.jsonl", 10 << 30)


def _deep(where: Path, run: Path, outside: Path) -> None:
    del where, outside
    (run / "summary.json").write_text("[" * 100_000)


def _html(where: Path, run: Path, outside: Path) -> None:
    del where, outside
    _change(
        run / "manifest.json", lambda known: known["algorithm"].update(name=HTML, command=[HTML])
    )
    _change(
        run / "manifest.json",
        lambda known: known.update(scenario=HTML, fabric=HTML, tcp_timers=HTML),
    )
    _change(
        run / "summary.json",
        lambda known: known.update(reasons=[HTML], algorithm=HTML),
    )


def _verdict(where: Path, run: Path, outside: Path) -> None:
    del where, outside
    _change(run / "summary.json", lambda known: known.update(verdict=HTML))


def _linked(where: Path, run: Path, outside: Path) -> None:
    del run
    figures = where / "out/figures"
    figures.mkdir(parents=True)
    victim = outside / "manifest.json"
    for name in ("fidelity", "job_bytes", "job_steps", "job_values"):
        for suffix in ("png", "pdf", "csv"):
            (figures / f"{name}.{suffix}").symlink_to(victim)
    for name in ("report.html", "table.csv"):
        (where / "out" / name).symlink_to(victim)


def _linked_folder(where: Path, run: Path, outside: Path) -> None:
    del run
    (where / "out").mkdir()
    (where / "out/figures").symlink_to(outside)


def _nonsense(where: Path, run: Path, outside: Path) -> None:
    """A comparison and events of the wrong kinds, one of them of a step that never ended."""
    entries = [{"dir": ["x"]}, {"dir": "../../../../etc"}, 5, {"dir": str(outside)}]
    said = {"hash": 5, "fabric": [], "algorithms": 7, "seeds": "x", "order": [[1]], "runs": entries}
    (where / "comparison.json").write_text(json.dumps(said))
    events = run / "events"
    events.mkdir(exist_ok=True)
    lines = [
        {"kind": "step", "step": "x", "node": ESCAPES},
        {"kind": "step", "node": ESCAPES},
        {"kind": []},
    ]
    (events / "worker-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _change(
        run / "manifest.json", lambda known: known.update(algorithm={"name": "none", "selector": 5})
    )


_SPOILS: dict[str, Callable[[Path, Path, Path], None]] = {
    "report lacks": _lacks,
    "report types": _types,
    "report pipe": _pipe,
    "report line": _line,
    "report deep": _deep,
    "report html": _html,
    "report verdict": _verdict,
    "report linked": _linked,
    "report linked folder": _linked_folder,
}
