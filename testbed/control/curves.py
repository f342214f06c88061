"""Error curves of layers: means of those seen, read at any density."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, log2
from typing import Any

from testbed.control.base import LEVELS, Observation
from testbed.errors import ExperimentError


class Curves:
    """By layer the mean, over the curves since the last decision, of the energy left out at each of ``LEVELS``."""

    def __init__(self, controller: str) -> None:
        self._controller = controller
        self._sums: dict[str, list[float]] = {}
        self._many: dict[str, int] = {}

    def take(self, seen: Observation) -> None:
        """Take in a step's, if it has some. Raises ExperimentError for ones that are not finite."""
        for name, (energy, *shares) in seen.curves.items():
            errors = [energy * share for share in shares]
            if len(errors) != len(LEVELS) or not all(isfinite(one) and one >= 0 for one in errors):
                raise ExperimentError(
                    f"controller {self._controller!r}: step {seen.step}: the error curve of {name!r} is not one of "
                    f"{len(LEVELS)} finite levels"
                )
            before = self._sums.get(name, [0.0] * len(LEVELS))
            self._sums[name] = [old + new for old, new in zip(before, errors, strict=True)]
            self._many[name] = self._many.get(name, 0) + 1

    def means(self, names: list[str]) -> dict[str, list[float]]:
        """Energy left out at each of ``LEVELS``; then all is forgotten. Raises ExperimentError where one of ``names`` has none."""
        missing = next((name for name in names if name not in self._many), None)
        if missing is not None:
            raise ExperimentError(
                f"controller {self._controller!r}: there is no `curves` entry of {missing!r}: errors by density were not watched"
            )
        found = {name: [one / self._many[name] for one in self._sums[name]] for name in names}
        self._sums, self._many = {}, {}
        return found

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return {"sums": {name: list(sums) for name, sums in self._sums.items()}, "many": dict(self._many)}  # fmt: skip

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``."""
        self._sums, self._many = dict(state["sums"]), dict(state["many"])


def error_at(curve: list[float], density: float) -> float:
    """Energy left out at any density in (0, 1]: linear in log k between ``LEVELS``, and below the last as at the last."""
    place = -2 * log2(density)
    before = min(int(place), len(LEVELS) - 1)
    after = min(before + 1, len(LEVELS) - 1)
    return curve[before] + (place - before) * (curve[after] - curve[before])
