"""What is run of a scenario, and with which pace. Pure.

The model of coded synchronous SGD (Li et al.) is T(r) = r · T_calc + T_comm / r. With c = T_calc / (T_calc + T_comm) of
SSGD by multicast, T(r) / T(1) = r·c + (1 − c)/r: how much a redundancy r saves is decided by c alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMES = (
    "ssgd", "ssgd-multicast", "cssgd-r2", "cssgd-r9", "replicated-r2", "replicated-r5", "grouped-r4", "combined-r4",
)  # fmt: skip
"""What is measured. r + 1 divides 10 for 4 and 9, r does for 2 and 5."""
BASE, ASYNC = "ssgd-multicast", "asgd"
SHARES = (0.05, 0.2, 0.5)
_NAME = 31
"""Characters of a scenario's name, at most."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for. ``share``: c of the runs on real links; ``shares``: of those in virtual time."""

    accuracy: float
    share: float = 0.05
    shares: tuple[float, ...] = SHARES
    schemes: tuple[str, ...] = SCHEMES
    rates: tuple[float, ...] = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
    """Learning rates that are tried in virtual time, for SSGD and ASGD apart."""
    steps: int = 30
    """Of every measurement of a step's time."""
    most: int = 400
    """Steps within which the accuracy must be reached."""
    every: int = 2
    """Steps from one evaluation to the next, where the accuracy is looked for."""
    seed: int = 1


def share_for(saved: float, most: int = 16) -> tuple[float, int]:
    """The largest c at which T(r) of the best r ≤ ``most`` is 1 − ``saved`` of T(1), and that r.

    r·c + (1 − c)/r = 1 − saved has the solution c = (1 − saved − 1/r) / (r − 1/r).
    """
    found = [((1 - saved - 1 / r) / (r - 1 / r), r) for r in range(2, most + 1)]
    return max(found)


def pace_s(share: float, communication_s: float) -> float:
    """What a mini-batch's share must take for ``share`` of SSGD's step to be computation."""
    return share / (1 - share) * communication_s


def modelled(share: float, redundancy: int, load: float) -> float:
    """T / T(1) for a scheme that sends ``load`` times what SSGD by multicast sends."""
    return redundancy * share + load * (1 - share)


@dataclass(frozen=True, slots=True)
class Variant:
    """What differs from the scenario; None: nothing."""

    name: str
    algorithms: tuple[str, ...]
    steps: int | None = None
    accuracy: float | None = None
    """Where a run stops besides."""
    every: int | None = None
    pace_s: float | None = None
    """In model time."""
    rate: float | None = None
    """Learning rate."""
    more: Mapping[str, Any] = field(default_factory=dict)

    def of(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """The scenario ``base`` (as it was read) with these changes."""
        train = dict(base["train"])
        stop = {"steps": self.steps, "accuracy": self.accuracy}
        train["stop"] = {key: value for key, value in stop.items() if value is not None}
        train["evaluate_every"] = self.every or self.steps or train["evaluate_every"]
        if self.pace_s is not None:
            train["pace"] = f"{1e6 * self.pace_s:.0f} us"
        if self.rate is not None:
            train["optimizer"] = {**train["optimizer"], "lr": self.rate}
        name = f"{base['name']}-{self.name}".replace(".", "-")[:_NAME].rstrip("-")
        return {**base, "name": name, "train": train, "algorithms": list(self.algorithms)}
