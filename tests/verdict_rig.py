"""What a run on real links may end with: valid, or less for want of a processor alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

PROCESSOR = frozenset({"stolen_share", "starved_share", "overrun_share", "contended_share"})
"""The measures that blame the host's processors; each gives one sentence for the whole run."""
LATE = frozenset(
    {"lateness_p99_ms", "lateness_max_ms", "node_lateness_ms", "unwatched_share", "resume_ms"}
)
"""The measures of when the agent and the fabric did what was due."""
CARRIED = frozenset({"link_ratio", "link_mape_1s", "link_excess"})
"""The measures of what links delivered. On a link that was changed in time they are the product's."""
ARRIVED = frozenset({"min_rtt", "message_completion"})
"""The measures of when packets and messages arrived."""
TIMED = LATE | CARRIED | ARRIVED
"""The measures of how exactly in time things happened: a hypervisor that takes the processors away decides them, whatever
was done, and so may tests that run beside this one. ``_excused`` says where they are excused."""
BESIDE = "NARROWS_BESIDE"
"""Environment: set where other tests run at the same time."""
ORDER = ("valid", "degraded", "invalid")
_LOST = re.compile(r"(\S+) was lost\b.*, and the run went on without it$")
_NOT_JUDGED = "not judged: "
VERDICTS = "NARROWS_VERDICTS"
"""Environment: the file that counts runs, one JSON object a line."""


def accepted(report: Mapping[str, Any], code: int, lost: Collection[str] = ()) -> str:
    """The verdict of a run's ``summary.json``, if it is one that the run may have; AssertionError otherwise.

    A run that is not valid must be so by measures of the processors alone, or of time as ``_excused`` says.
    ``code``: how the command of this run ended. ``lost``: the workers that the run was to lose; who else was lost, was lost by a fault.
    """
    verdict = _judged(report, lost)
    assert code == (verdict == "invalid"), (code, verdict, report["reasons"])
    return verdict


def accepted_run(directory: Path, code: int, lost: Collection[str] = ()) -> str:
    """``accepted`` of the run whose records are in ``directory``."""
    return accepted(_summary(directory), code, lost)


def accepted_runs(directories: Iterable[Path], code: int, lost: Collection[str] = ()) -> list[str]:
    """Verdicts of the runs that one command made, which ends with 1 if any of them is invalid."""
    found = [_judged(_summary(directory), lost) for directory in directories]
    assert found, "there are no runs"
    assert code == ("invalid" in found), (code, found)
    return found


def some_valid(reports: Iterable[Mapping[str, Any]]) -> list[str]:
    """Verdicts of runs that may be invalid for what they try: AssertionError if none is valid and one has no excuse for it."""
    found = list(reports)
    assert found, "there are no runs"
    if any(report["verdict"] == "valid" for report in found):
        return [str(report["verdict"]) for report in found]
    return [_judged(report, ()) for report in found]


def fault(report: Mapping[str, Any], lost: Collection[str] = ()) -> str:
    """Why a report's verdict cannot be accepted, in a sentence; empty where it can be."""
    verdict, reasons, measures = (report.get(key) for key in ("verdict", "reasons", "measures"))
    if verdict not in ORDER or reasons is None or measures is None:
        return f"this is no summary of a run: {report}"
    states = {
        name: _state(found)
        for name, found in measures.items()
        if name != "completion"  # figures without a state
    }
    if missing := sorted(PROCESSOR - states.keys()):
        return f"there are no measures named {', '.join(missing)}: {reasons}"
    if verdict != (worst := max(states.values(), key=ORDER.index)):
        return f"the verdict is {verdict}, its worst measure {worst}"
    excused = _excused(states)
    if wrong := sorted(name for name in states.keys() - excused if states[name] != "valid"):
        return f"{', '.join(wrong)}: {reasons}"
    unjudged = [reason for reason in reasons if reason.startswith(_NOT_JUDGED)]
    if unjudged and not isinstance(measures.get("link_ratio"), Mapping):
        return f"no link was judged: {unjudged}"
    gone = {found[1]: reason for reason in reasons if (found := _LOST.match(reason))}
    if gone.keys() != set(lost):
        return f"expected to lose {sorted(lost)}: {reasons}"
    blamed = sum(states[name] != "valid" for name in PROCESSOR)
    late = {name for name in states.keys() & TIMED if states[name] != "valid"}
    if late and len(reasons) >= blamed + len(late):
        return ""  # such measures give a sentence for each link
    if len(reasons) != blamed + len(unjudged) + len(gone):
        return f"{blamed} measures of the processors explain not all of {reasons}"
    return ""


def _excused(states: Mapping[str, str]) -> frozenset[str]:
    """Return the measures that may be other than valid.

    Those of time where the hypervisor took the processors; beside other tests where a processor was missing or something
    was late. A link whose changes were all in time, on processors that were there, has no excuse for what it delivered;
    messages may have arrived a little later than they should.
    """
    if states["stolen_share"] != "valid":
        return PROCESSOR | TIMED
    if not os.environ.get(BESIDE):
        return PROCESSOR
    if any(states.get(name, "valid") != "valid" for name in PROCESSOR | LATE):
        return PROCESSOR | TIMED
    return PROCESSOR | {name for name in ARRIVED if states.get(name) == "degraded"}


def _state(found: object) -> str:
    """Return a measure's state. One that was not taken is a sentence, and counts as valid."""
    return str(found["state"]) if isinstance(found, Mapping) else "valid"


def _judged(report: Mapping[str, Any], lost: Collection[str]) -> str:
    why = fault(report, lost)
    _count(report, excused=not why and report["verdict"] != "valid")
    assert not why, why
    return str(report["verdict"])


def _summary(directory: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return read


def _count(report: Mapping[str, Any], *, excused: bool) -> None:
    if not (path := os.environ.get(VERDICTS)):
        return
    said = {
        "test": os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0],
        "verdict": report.get("verdict"),
        "excused": excused,
        "stolen": excused and _state(report["measures"]["stolen_share"]) != "valid",
        "reasons": report.get("reasons"),
    }
    with Path(path).open("a") as file:  # one write a line: processes of other tests append, too
        file.write(json.dumps(said) + "\n")
