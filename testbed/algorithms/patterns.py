"""Names with a number in them: ``topk-0.15``, ``strom-0.001``, ``powersgd-r2``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from testbed.algorithms.algorithm import Algorithm
from testbed.algorithms.coded import CODED
from testbed.errors import InputError

_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(e-?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Number:
    """What stands in the place of the number."""

    word: str
    meaning: str
    example: str
    fits: Callable[[float], bool]

    def read(self, text: str) -> float | None:
        """None for what is no such number."""
        value = float(text) if _NUMBER.fullmatch(text) else -1.0
        return value if self.fits(value) else None


DENSITY = Number(
    "density", "a share of the elements, above 0 and at most 1", "0.15", lambda x: 0 < x <= 1
)
MAGNITUDE = Number("tau", "a magnitude, above 1e-37", "0.001", lambda x: 1e-37 < x < 1e38)
REDUNDANCY = Number("r", "a whole number from 1 to 15", "2", lambda x: 1 <= x <= 15 and x % 1 == 0)
BOUND = Number(
    "bound", "a whole number of steps from 0", "3", lambda x: 0 <= x < 2**31 and x % 1 == 0
)
BACKUPS = Number(
    "b", "a whole number of workers from 1", "1", lambda x: 1 <= x < 2**15 and x % 1 == 0
)
RANK = Number("rank", "a whole number from 1 to 64", "2", lambda x: 1 <= x <= 64 and x % 1 == 0)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Names that begin with ``prefix`` and end with a number; ``row`` with what ``set_`` makes of it."""

    prefix: str
    number: Number
    row: Algorithm
    set_: Callable[[float], dict[str, Any]]

    def __str__(self) -> str:
        return f"{self.prefix}<{self.number.word}>"

    @property
    def about(self) -> str:
        """A sentence for people."""
        return self.row.about

    @property
    def example(self) -> str:
        """A name that matches."""
        return f"{self.prefix}{self.number.example}"

    def matches(self, name: str) -> bool:
        """Whether ``name`` is one of these, number and all."""
        return (
            name.startswith(self.prefix)
            and self.number.read(name.removeprefix(self.prefix)) is not None
        )

    def make(self, name: str, where: str | None = None) -> Algorithm:
        """The algorithm called ``name``, which has the prefix. Raises InputError for a wrong number."""
        text = name.removeprefix(self.prefix)
        if (value := self.number.read(text)) is None:
            raise InputError(
                f"algorithm {name!r}: {text!r} is no {self.number.word}: it is {self.number.meaning}",
                where=where,
                hint=f"Write for example {self.example!r}",
            )
        about = f"{self.row.about.rstrip('.')}; {self.number.word} {value:g}."
        return replace(self.row, name=name, about=about, **self.set_(value))


def _share(selector: str, about: str, memory: str = "feedback", **more: Any) -> Pattern:
    """``<selector>-<density>``."""
    row = Algorithm(f"{selector}-", selector, memory, about=about, **more)
    return Pattern(f"{selector}-", DENSITY, row, _density)


def _density(density: float) -> dict[str, Any]:
    return {"options": {"density": density}}


def _threshold(tau: float) -> dict[str, Any]:
    return {"selector_options": {"at": tau}}


def _strom(tau: float) -> dict[str, Any]:
    return {**_threshold(tau), "values_options": {"scale": tau}}


def _rank(rank: float) -> dict[str, Any]:
    return {"values_options": {"rank": int(rank)}}


def _coded(prefix: str) -> Pattern:
    """``<prefix>-r<r>``, beside the row ``<prefix>-auto``."""
    row = CODED[prefix]

    def set_(r: float) -> dict[str, Any]:
        return {"exchange_options": {**row.exchange_options, "r": int(r)}}

    return Pattern(f"{prefix}-r", REDUNDANCY, replace(row, name=f"{prefix}-r"), set_)


def _bound(bound: float) -> dict[str, Any]:
    return {"exchange_options": {"bound": int(bound)}}


def _backups(backups: float) -> dict[str, Any]:
    return {"exchange_options": {"backups": int(backups)}}


PATTERNS: tuple[Pattern, ...] = (
    _share("topk", "Exact top-k by torch.topk, with error feedback."),
    _share("radix", "Exact top-k by the digits of the magnitudes, with error feedback."),
    _share("laplace", "Laplacian threshold with warm-started correction, with error feedback."),
    _share("randk", "Random elements, a seed in place of their indices; error feedback."),
    Pattern(
        "randk-unbiased-", DENSITY,
        Algorithm("randk-unbiased-", "randk", selector_options={"scale": True}, about="Random elements times n/k, and no memory: unbiased."),
        _density,
    ),
    _share("dgc", "DGC: threshold of a sample; momentum correction and masking.", "dgc"),
    _share("hierarchical", "Threshold of a sample, then exact top-k of the survivors; error feedback."),
    _share("sidco-e", "SIDCo, exponential stages; error feedback."),
    _share("sidco-p", "SIDCo, generalised Pareto stages; error feedback."),
    _share("sidco-gp", "SIDCo, gamma and then generalised Pareto stages; error feedback."),
    _share("redsync-trimmed", "RedSync's trimmed top-k; error feedback."),
    _share("redsync-search", "RedSync's threshold search; error feedback."),
    _share("gaussian", "GaussianK: threshold of a normal distribution; error feedback."),
    _share("mstopk", "MSTop-k: approximate threshold in many small steps; error feedback."),
    _share("dryden", "Dryden's adaptive quantisation: 1 bit for each element sent; error feedback.", values="onebit"),
    Pattern(
        "allgather-topk-", DENSITY,
        Algorithm("allgather-topk-", "topk", "feedback", exchange="allgather", about="Exact top-k, everybody's gathered by PyTorch's gloo; error feedback."),
        _density,
    ),
    Pattern(
        "threshold-", MAGNITUDE,
        Algorithm("threshold-", "threshold", "feedback", about="Hard threshold with error feedback: all of at least that magnitude."),
        _threshold,
    ),
    Pattern(
        "strom-", MAGNITUDE,
        Algorithm("strom-", "threshold", "feedback", values="sign", about="Strom's threshold quantisation: ±τ where the magnitude reaches it; error feedback."),
        _strom,
    ),
    Pattern(
        "powersgd-r", RANK,
        Algorithm("powersgd-r", memory="feedback", values="lowrank", about="PowerSGD: two thin matrices for each parameter, warm start; error feedback."),
        _rank,
    ),
    *map(_coded, CODED),
    Pattern(
        "asgd-s", BOUND,
        Algorithm("asgd-s", exchange="ps-async", about="Stale synchronous parallel: asynchronous SGD whose fastest worker is at most so many steps ahead of the slowest."),
        _bound,
    ),
    Pattern(
        "backup-", BACKUPS,
        Algorithm("backup-", exchange="ps-backup", about="Synchronous SGD with backup workers: a step does not wait for the last b gradients, and drops them."),
        _backups,
    ),
)  # fmt: skip
"""Every pattern of names."""
