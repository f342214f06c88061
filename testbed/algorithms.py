"""Algorithms are rows of data: what is sent, what is remembered, how much, and how it travels.

A name is a row of ``ROWS``, matches one of ``PATTERNS``, or is given by a scenario that derives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from testbed.compress.base import memories, selectors
from testbed.compress.elements import check_density
from testbed.control.base import controllers
from testbed.errors import InputError
from testbed.exchange import builtin as _builtin
from testbed.exchange.kinds import exchanges

if TYPE_CHECKING:
    from testbed.scenario.model import Derived

del _builtin


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to exchange gradients. Names in it are looked up in the registries."""

    name: str
    selector: str = "dense"
    memory: str = "none"
    controller: str = "fixed"
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the controller; ``fixed`` takes ``density``."""
    exchange: str = "ps"
    buckets: str = "whole"
    overlap: bool = False
    about: str = ""
    """A sentence for people."""

    def to_json(self) -> dict[str, Any]:
        """As it stands in a manifest; ``from_json`` reads it back equal."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Algorithm:
        """Read what ``to_json`` wrote. Raises InputError when it is something else."""
        try:
            return cls(**data)
        except TypeError as error:
            raise InputError(f"this is not an algorithm: {error}") from error


def _adatopk(name: str, about: str, **options: Any) -> Algorithm:
    return Algorithm(name, "topk", "feedback", "adatopk", options, about=about)


ROWS: tuple[Algorithm, ...] = (
    Algorithm("none", about="Uncompressed float32: the baseline."),
    _adatopk("adatopk", "AdaTopK, Algorithm 1 as printed; k_dec = k_min."),
    _adatopk("adatopk-kd0.05", "AdaTopK with k_dec = 0.05.", k_dec=0.05),
    _adatopk("adatopk-kd0.1", "AdaTopK with k_dec = 0.1.", k_dec=0.1),
    _adatopk("adatopk-kd0.15", "AdaTopK with k_dec = 0.15.", k_dec=0.15),
    _adatopk("adatopk-kdmax", "AdaTopK with k_dec = k_max.", k_dec="k_max"),
    _adatopk("adatopk-tomin", "AdaTopK that lowers k towards k_min.", decrease="toward_min"),
    _adatopk("adatopk-kmax0.26", "AdaTopK with the other k_max of its Table 2.", k_max=0.26),
    _adatopk("adatopk-eps0.9", "AdaTopK with ε = 0.9 of its Table 2 for raising.", p_inc=0.9),
    _adatopk("adatopk-slope", "AdaTopK that sees congestion in a least-squares slope.", trend="slope"),
    _adatopk("adatopk-signed", "AdaTopK for which falling accuracy is no growth.", accuracy="signed"),
    _adatopk("adatopk-perbyte", "AdaTopK that looks at delay per byte.", delay="per_byte"),
)  # fmt: skip
"""Every algorithm with a name of its own."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Names with a density in them: ``topk-0.15``."""

    prefix: str
    about: str
    make: Callable[[str, float], Algorithm]

    def __str__(self) -> str:
        return f"{self.prefix}<density>"


def _topk(name: str, density: float) -> Algorithm:
    about = f"Exact top-k with error feedback; {density:g} of the elements."
    return Algorithm(name, "topk", "feedback", "fixed", {"density": density}, about=about)


PATTERNS: tuple[Pattern, ...] = (
    Pattern("topk-", "Exact top-k with error feedback at a fixed density, 0 < density ≤ 1.", _topk),
)


def known() -> list[Algorithm]:
    """Every row, in the order of the table; names that match a pattern come on top."""
    return list(ROWS)


def resolve(entry: str | Derived, *, where: str | None = None) -> Algorithm:
    """The algorithm that a scenario or flag asks for, checked down to its controller's options.

    Raises InputError at ``where``: an unknown name (with the known ones and the nearest), a density
    outside (0, 1], an option its controller does not have, parts that do not fit together.
    """
    algorithm = _named(entry, where) if isinstance(entry, str) else _derived(entry, where)
    check(algorithm, where)
    return algorithm


def check(algorithm: Algorithm, where: str | None = None) -> None:
    """Raise InputError unless every part of ``algorithm`` exists, can be made, and fits the others."""
    try:
        selectors.get(algorithm.selector)()
        memories.get(algorithm.memory)()
        exchanges.get(algorithm.exchange)
        controller = controllers.get(algorithm.controller)(seed=0, **algorithm.options)
    except InputError as error:
        message = f"algorithm {algorithm.name!r}: {error.message}"
        raise InputError(message, where=where, hint=error.hint) from error
    if algorithm.selector == "dense" and (
        algorithm.controller != "fixed" or controller.density() < 1
    ):
        raise InputError(
            f"algorithm {algorithm.name!r}: selector 'dense' sends every element, so that nothing "
            "can be made of a density",
            where=where,
            hint=f"Selectors that can: {', '.join(_without(selectors, 'dense'))}",
        )


def _named(name: str, where: str | None) -> Algorithm:
    for row in ROWS:
        if row.name == name:
            return row
    for pattern in PATTERNS:
        if name.startswith(pattern.prefix):
            return pattern.make(name, _density(name, pattern, where))
    names = [row.name for row in ROWS]
    near = get_close_matches(name, names, n=1)
    raise InputError(
        f"unknown algorithm {name!r}",
        where=where,
        hint=(f"Did you mean {near[0]!r}? " if near else "")
        + f"Known: {', '.join([*names, *map(str, PATTERNS)])}",
    )


def _density(name: str, pattern: Pattern, where: str | None) -> float:
    """The density in a name that has the pattern's prefix."""
    if (density := _read_density(name.removeprefix(pattern.prefix))) is None:
        raise InputError(
            f"algorithm {name!r}: {name.removeprefix(pattern.prefix)!r} is no density: it is a "
            "share of the elements, above 0 and at most 1",
            where=where,
            hint=f"Write for example '{pattern.prefix}0.15'",
        )
    return density


def _read_density(text: str) -> float | None:
    try:
        density = float(text)
        check_density(density)
    except (ValueError, InputError):
        return None
    return density


def _derived(entry: Derived, where: str | None) -> Algorithm:
    """Another algorithm with some of its parts changed."""
    if any(row.name == entry.name for row in ROWS) or _matches_pattern(entry.name):
        raise InputError(
            f"algorithm {entry.name!r} exists already: a derived one needs a name of its own",
            where=where,
        )
    base = _named(entry.from_, where)
    if entry.density is not None and base.controller != "fixed":
        raise InputError(
            f"algorithm {entry.name!r}: its controller {base.controller!r} chooses the density",
            where=where,
            hint="Leave 'density' out, or start from an algorithm with a fixed one",
        )
    density = {} if entry.density is None else {"density": entry.density}
    return replace(
        base,
        name=entry.name,
        selector=entry.selector or base.selector,
        memory=entry.memory or base.memory,
        options={**base.options, **density, **entry.controller},
        about=f"Derived from {base.name}.",
    )


def _matches_pattern(name: str) -> bool:
    return any(
        name.startswith(pattern.prefix)
        and _read_density(name.removeprefix(pattern.prefix)) is not None
        for pattern in PATTERNS
    )


def _without(names: Iterable[str], left_out: str) -> list[str]:
    return [name for name in names if name != left_out]
