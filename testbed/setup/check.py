"""What a check is: a need by name, how it is judged, and what mends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from testbed.errors import MachineError


@dataclass(frozen=True, slots=True)
class Finding:
    """What a probe saw. ``fix``: what to do, empty when nothing is wrong."""

    ok: bool
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A need of this project. ``mend`` is what ``doctor --fix`` does about it; None: nothing it can do.

    Without an optional need everything but what its ``detail`` names works.
    """

    name: str
    probe: Callable[[], Finding]
    mend: Callable[[], object] | None = None
    required: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """A check and what came of it."""

    check: Check
    finding: Finding

    @property
    def failed(self) -> bool:
        """Whether this machine cannot be used as it is."""
        return self.check.required and not self.finding.ok

    def to_json(self) -> dict[str, object]:
        """``{"name", "ok", "detail", "fix"}``."""
        detail = self.finding.detail if self.check.required else f"{self.finding.detail} (optional)"
        fix = "" if self.finding.ok else self.finding.fix
        return {"name": self.check.name, "ok": self.finding.ok, "detail": detail, "fix": fix}


def judge(check: Check) -> Result:
    """Probe once; a MachineError says what is wrong and how to mend it."""
    try:
        return Result(check, check.probe())
    except MachineError as error:
        return Result(check, _said(error))


def mended(check: Check) -> Result:
    """Probe; where that fails and there is a remedy, apply it and probe again."""
    result = judge(check)
    if result.finding.ok or check.mend is None:
        return result
    try:
        check.mend()
    except MachineError as error:
        return Result(check, _said(error))
    return judge(check)


def _said(error: MachineError) -> Finding:
    return Finding(False, error.message, error.fix or "")
