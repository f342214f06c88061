"""Which parts of an algorithm go together, and whether it goes with workers that are not alike;
from a name, or from what a scenario derives, to an algorithm.

A name is a row of ``ROWS``, matches one of ``PATTERNS``, adds parts to one of these (``SUFFIXES``),
or is given by a scenario that derives it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from testbed.algorithm import Algorithm, Pattern
from testbed.algorithms import PATTERNS, ROWS, SUFFIXES, extended
from testbed.compress.base import Recipe, RecipeChoice, codings, needs_all, selectors
from testbed.compress.layout import Layout
from testbed.control.base import Controller, controllers
from testbed.errors import InputError
from testbed.exchange.base import exchanges

if TYPE_CHECKING:
    from testbed.scenario.model import Derived, Scenario

__all__ = [
    "PATTERNS",
    "ROWS",
    "SUFFIXES",
    "Algorithm",
    "Pattern",
    "check",
    "check_momentum",
    "check_nodes",
    "known",
    "resolve",
]


def check_dealt(algorithm: Algorithm, scenario: Scenario, workers: int) -> None:
    """Data that differ by worker, and steps in which not all take part."""
    kind, train = exchanges.get(algorithm.exchange), scenario.train
    participation = train.participation
    leaves = any(event.kind == "absent" for event in scenario.events)
    if kind.unit == "blocks" and train.split.alpha is not None:
        raise InputError(
            f"by exchange {algorithm.exchange!r} several workers compute one sample, and with "
            "`train.split` each has its own",
            hint=(
                "Leave `split` out, or use algorithms whose exchange is `ps`, such as none or "
                "topk-0.01"
            ),
        )
    if leaves:
        _check_leaving(algorithm, scenario)
    if participation is None:
        return
    if (count := participation.many(workers)) > workers:
        raise InputError(
            f"{count} workers are to take part in a step, and there are {workers}",
            hint=f"Write at most `participation: {{workers: {workers}}}`",
        )
    if not kind.partial or algorithm.bucket_bytes or algorithm.agree:
        raise InputError(
            "`train.participation` needs the exchange `ps`, whole messages and controllers that "
            "do not agree: who rests has no part in other exchanges",
            hint=(
                "Use algorithms such as none or topk-0.01, without `bucket_bytes`, `overlap` "
                "and `agree`"
            ),
        )
    if train.gradients != "real":
        raise InputError(
            f"some workers rest in a step, and `train.gradients` is {train.gradients}",
            hint="Use `gradients: real`, or leave `participation` out",
        )


def _check_leaving(algorithm: Algorithm, scenario: Scenario) -> None:
    """Raise InputError where the run cannot go on while workers are away."""
    train = scenario.train
    servers = sum(group.count or 1 for group in scenario.nodes.values() if group.role == "server")
    leaving = exchanges.get(algorithm.exchange).elastic is not None
    if not leaving or servers != 1 or algorithm.bucket_bytes or algorithm.agree:
        raise InputError(
            "workers that are `absent` need the exchange `ps`, one server, whole messages and "
            "controllers that do not agree",
            hint=(
                "Use algorithms such as none or topk-0.01, without `bucket_bytes`, `overlap` "
                "and `agree`"
            ),
        )
    if train.gradients != "real" or train.participation is not None:
        raise InputError(
            "workers that are `absent` take the run's parameters when they return: there have to "
            "be some, and nobody else rests",
            hint="Use `gradients: real`, and no `participation`",
        )


BUCKETS = ("whole", "layer")
ORDERS = ("forward", "backward")


def check(algorithm: Algorithm, where: str | None = None) -> None:
    """Raise InputError unless every part of ``algorithm`` exists and fits the others."""
    try:
        controller = _built(algorithm)
        _check_density(algorithm, controller)
        _check_values(algorithm)
        _check_buckets(algorithm)
        _check_carried(algorithm)
        _check_exchange(algorithm)
        _check_agreed(algorithm, controller)
        _check_paths(algorithm, controller)
        _check_overlap(algorithm)
    except InputError as error:
        message = f"algorithm {algorithm.name!r}: {error.message}"
        raise InputError(message, where=where, hint=error.hint) from error


def check_momentum(algorithm: Algorithm, momentum: float, where: str | None = None) -> None:
    """Raise InputError where both the memory and the optimizer have momentum."""
    if algorithm.memory == "dgc" and momentum:
        raise InputError(
            f"algorithm {algorithm.name!r}: memory 'dgc' has the momentum in it, and the "
            f"optimizer's {momentum:g} would count it twice",
            where=where,
            hint=(
                "Leave `train.optimizer.momentum` out; `memory_options: {momentum: …}` sets that "
                "of the memory"
            ),
        )


def check_nodes(algorithm: Algorithm, scenario: Scenario, where: str | None = None) -> None:
    """Raise InputError where the exchange lacks a server, or a server that sees an accuracy to stop
    at, or cannot do with the workers that there are."""
    groups = [group for group in scenario.nodes.values() if group.role == "server"]
    check_many(algorithm, scenario, where)
    if exchanges.get(algorithm.exchange).server is not None:
        if not groups:
            raise InputError(
                f"algorithm {algorithm.name!r} exchanges by {algorithm.exchange!r}, and there is "
                "no server",
                where=where,
                hint="Add `server: {role: server}` to `nodes`",
            )
    elif scenario.train.stop.accuracy is not None:
        raise InputError(
            f"algorithm {algorithm.name!r} exchanges by {algorithm.exchange!r}, without a server "
            "that could stop the run at an accuracy",
            where=where,
            hint="Stop at `steps` or `epochs`",
        )
    _check_workers(algorithm, scenario, where)


def _check_workers(algorithm: Algorithm, scenario: Scenario, where: str | None) -> None:
    """So many workers, with such batches, and gradients or none."""
    kind, train = exchanges.get(algorithm.exchange), scenario.train
    workers = sum(g.count or 1 for g in scenario.nodes.values() if g.role == "worker")
    try:
        if kind.unit == "blocks" and train.gradients != "real":
            raise InputError(
                f"exchange {algorithm.exchange!r} has blocks of gradients computed, and "
                f"`train.gradients` is {train.gradients}",
                hint="Use `gradients: real`",
            )
        check_dealt(algorithm, scenario, workers)
        if algorithm.bucket_bytes and train.gradients != "real":
            raise InputError(
                f"buckets are made of layers, and `train.gradients` is {train.gradients}",
                hint="Use `gradients: real`",
            )
        kind.suits(algorithm.exchange_options, workers, train.batch)
    except InputError as error:
        message = f"algorithm {algorithm.name!r}: {error.message}"
        raise InputError(message, where=where, hint=error.hint) from error


def check_many(algorithm: Algorithm, scenario: Scenario, where: str | None) -> None:
    """Raise InputError for too many servers, too few workers, or gradients that are not real."""
    kind, named = exchanges.get(algorithm.exchange), f"algorithm {algorithm.name!r}"
    counts = {
        role: sum(group.count or 1 for group in scenario.nodes.values() if group.role == role)
        for role in ("server", "worker")
    }
    if kind.most_servers is not None and counts["server"] > kind.most_servers:
        raise InputError(
            f"{named} exchanges by {algorithm.exchange!r}, which has one server, and there are "
            f"{counts['server']}",
            where=where,
            hint="Write `server: {role: server}`",
        )
    spares = kind.max_lost_workers(algorithm.exchange_options, counts["worker"])
    if spares >= counts["worker"] > 0:
        raise InputError(
            f"{named} does not wait for {spares} workers, and there are only {counts['worker']}",
            where=where,
            hint=f"Write at most {counts['worker'] - 1}",
        )
    if not kind.lockstep and scenario.train.gradients != "real":
        raise InputError(
            f"{named} exchanges by {algorithm.exchange!r}, and `train.gradients` is "
            f"{scenario.train.gradients}",
            where=where,
            hint="Without gradients only exchanges in lockstep can be run: leave `gradients` out",
        )


def _check_exchange(algorithm: Algorithm) -> None:
    """Raise InputError where the exchange cannot bring back what the algorithm sends down."""
    kind = exchanges.get(algorithm.exchange)
    if algorithm.agree and not kind.agrees:
        raise InputError(
            f"exchange {algorithm.exchange!r} has no step at which all workers could agree",
            hint="Write `agree: false`",
        )
    if kind.down is None:
        return
    whole = algorithm.down_memory == "none" and algorithm.down_density == 1
    if algorithm.down not in kind.down or not whole:
        raise InputError(
            f"exchange {algorithm.exchange!r} sends parameters down, and cannot write them as "
            f"{algorithm.down!r} with memory {algorithm.down_memory!r} and density "
            f"{algorithm.down_density:g}",
            hint=f"Write `down: ` one of {_listed(kind.down)}, no `down_memory`, no `down_density`",
        )


def _check_agreed(algorithm: Algorithm, controller: Controller[Any]) -> None:
    """Who sees what no other worker sees does not decide as the others do."""
    own = sorted(controller.watches)
    if algorithm.agree and own:
        raise InputError(
            f"controller {algorithm.controller!r} sees {' and '.join(own)} of its own worker, and "
            "workers agree on delay and accuracy alone",
            hint="Write `agree: false`",
        )


def _check_paths(algorithm: Algorithm, controller: Controller[Any]) -> None:
    """Who watches the links to a server needs one: its density would never change."""
    if "path" in controller.watches and exchanges.get(algorithm.exchange).server is None:
        raise InputError(
            f"controller {algorithm.controller!r} watches the links to a server, and exchange "
            f"{algorithm.exchange!r} has none",
            hint="Write `bytes_take: measured` among the controller's options, or take the "
            "exchange `ps`",
        )


def _built(algorithm: Algorithm) -> Controller[Any]:
    """Every part once; the controller, to look at."""
    layout = Layout.whole("mean", 1)
    algorithm.recipe.check()
    algorithm.downward(layout)
    Recipe(memory=RecipeChoice(algorithm.down_memory)).make_memory(layout)
    exchanges.get(algorithm.exchange).check(algorithm.exchange_options)
    return controllers.get(algorithm.controller)(seed=0, **algorithm.options)


def _check_density(algorithm: Algorithm, controller: Controller[Any]) -> None:
    """A density must have a selector that takes it."""
    if selectors.get(algorithm.selector).takes_density:
        return
    if algorithm.controller == "fixed" and controller.density() == 1:
        return
    able = [name for name in selectors if selectors.get(name).takes_density]
    raise InputError(
        f"selector {algorithm.selector!r} takes no density, so that controller "
        f"{algorithm.controller!r} has nothing to choose",
        hint=f"Selectors that take one: {_listed(able)}",
    )


def _check_values(algorithm: Algorithm) -> None:
    """Check that a coding of whole gradients is given whole ones."""
    up, down = algorithm.selector != "dense", algorithm.down_density < 1
    for noun, name, options, partial in (
        ("value coding", algorithm.values, algorithm.values_options, up),
        ("value coding of the way down", algorithm.down, algorithm.down_options, up or down),
    ):
        if partial and needs_all(codings.get(name), **options):
            able = [other for other in codings if not needs_all(codings.get(other))]
            sender = f"selector {algorithm.selector!r}" if up else "`down_density`"
            raise InputError(
                f"{noun} {name!r} writes whole gradients, and {sender} sends some of their "
                "elements",
                hint=f"Take selector 'dense', or one of the value codings {_listed(able)}",
            )


def _check_buckets(algorithm: Algorithm) -> None:
    if algorithm.buckets not in BUCKETS:
        raise InputError(
            f"unknown buckets {algorithm.buckets!r}", hint=f"Known: {_listed(BUCKETS)}"
        )
    if algorithm.dense_below < 0 or (algorithm.dense_below and algorithm.buckets != "layer"):
        raise InputError(
            f"dense_below {algorithm.dense_below} with buckets {algorithm.buckets!r}",
            hint="It is a number of elements, and means something only with `buckets: layer`",
        )


def _check_overlap(algorithm: Algorithm) -> None:
    """Check that what overlaps or has an order travels in buckets, where the exchange has them."""
    if algorithm.order not in ORDERS:
        raise InputError(f"unknown order {algorithm.order!r}", hint=f"Known: {_listed(ORDERS)}")
    if algorithm.bucket_bytes < 0:
        raise InputError(f"bucket_bytes {algorithm.bucket_bytes}: it is a size")
    _check_messages(algorithm)
    if algorithm.overlap and not algorithm.bucket_bytes:
        raise InputError(
            "overlap without bucket_bytes: one message cannot leave before all of it is there",
            hint="Write `bucket_bytes`, such as `64 KiB`",
        )
    if algorithm.order != ORDERS[0] and not algorithm.bucket_bytes:
        raise InputError(
            f"order {algorithm.order!r} without bucket_bytes: one message is before or after no "
            "other",
            hint="Leave `order` out; it is that of buckets",
        )


def _check_messages(algorithm: Algorithm) -> None:
    """One message is neither parted nor sent before all of it is there."""
    if exchanges.get(algorithm.exchange).buckets:
        return
    given = {"bucket_bytes": algorithm.bucket_bytes, "overlap": algorithm.overlap}
    if wanted := {name: value for name, value in given.items() if value}:
        able = [name for name in exchanges if exchanges.get(name).buckets]
        off = ", ".join(f"`{name}: {_OFF[name]}`" for name in wanted)
        raise InputError(
            f"the exchange {algorithm.exchange!r} sends a gradient in one message, and "
            + " and ".join(f"{name} is {value}" for name, value in wanted.items()),
            hint=f"Write {off}; buckets travel by {_listed(able)}",
        )


_OFF = {"bucket_bytes": "0 B", "overlap": "false"}


def _check_carried(algorithm: Algorithm) -> None:
    """Raise InputError for compression of gradients that the exchange carries as they are."""
    if exchanges.get(algorithm.exchange).unit == "payload":
        return
    plain = Algorithm(algorithm.name, exchange=algorithm.exchange)
    compressed = ("selector", "memory", "values", "down", "down_memory", "down_density")
    parts = (*compressed, "buckets", "agree")
    for part in parts:
        if (given := getattr(algorithm, part)) != getattr(plain, part):
            raise InputError(
                f"the exchange {algorithm.exchange!r} carries gradients as they are, and {part} "
                f"is {given!r}",
                hint="Compressed gradients travel by "
                + _listed(name for name in exchanges if exchanges.get(name).unit == "payload"),
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


_PARTS = ("selector", "values", "memory", "down", "exchange")
_SETTINGS = (
    "down_memory",
    "down_density",
    "buckets",
    "dense_below",
    "bucket_bytes",
    "overlap",
    "order",
    "agree",
)


def derive(entry: Derived, base: Algorithm, where: str | None) -> Algorithm:
    """``base`` as ``entry`` changes it, unchecked. Raises InputError for a density that is not
    fixed.

    Options of a part are added to those that ``base`` gives it, as long as it is the same part.
    ``mean_of`` stands for a density that is not known here: all is sent.
    """
    rule = "fixed" if entry.mean_of is not None else entry.rule or base.controller
    if entry.density is not None and rule != "fixed":
        raise InputError(
            f"algorithm {entry.name!r}: its controller {rule!r} chooses the density",
            where=where,
            hint="Leave 'density' out, or write `rule: fixed`",
        )
    kept = base.options if rule == base.controller else {}
    density = {} if entry.density is None else {"density": entry.density}
    changes: dict[str, Any] = {
        "controller": rule,
        "options": {**kept, **density, **entry.controller},
    }
    for part in _PARTS:
        changes |= _part(part, entry, base)
    for setting in _SETTINGS:
        if (given := getattr(entry, setting)) is not None:
            changes[setting] = given
    return replace(base, name=entry.name, about=f"Derived from {base.name}.", **changes)


def _part(part: str, entry: Derived, base: Algorithm) -> dict[str, Any]:
    """A part's name and options."""
    name = getattr(entry, part) or getattr(base, part)
    options = f"{part}_options"
    kept = getattr(base, options) if name == getattr(base, part) else {}
    return {part: name, options: {**kept, **getattr(entry, options)}}


def known() -> list[Algorithm]:
    """Every row, in the order of the table; names that match a pattern come on top."""
    return list(ROWS)


def resolve(entry: str | Derived, *, where: str | None = None) -> Algorithm:
    """The algorithm that a scenario or flag asks for, checked down to the options of its parts.

    Raises InputError at ``where``: an unknown name (with the known ones and the nearest), a density
    outside (0, 1], an option that a part does not have, parts that do not fit together.
    """
    algorithm = _named(entry, where) if isinstance(entry, str) else _derived(entry, where)
    check(algorithm, where)
    return algorithm


def _derived(entry: Derived, where: str | None) -> Algorithm:
    if any(row.name == entry.name for row in ROWS) or any(p.matches(entry.name) for p in PATTERNS):
        raise InputError(
            f"algorithm {entry.name!r} exists already: a derived one needs a name of its own",
            where=where,
        )
    return derive(entry, _named(entry.from_, where), where)


def _named(name: str, where: str | None) -> Algorithm:
    base, *suffixes = name.split("+")
    algorithm = _row(base) or _matching(base, where)
    if algorithm is None:
        raise _unknown(name, base, where)
    return extended(algorithm, suffixes, where) if suffixes else algorithm


def _row(name: str) -> Algorithm | None:
    return next((row for row in ROWS if row.name == name), None)


def _matching(name: str, where: str | None) -> Algorithm | None:
    """Return the algorithm of the longest pattern with which ``name`` begins; None: none does."""
    begun = [pattern for pattern in PATTERNS if name.startswith(pattern.prefix)]
    if not begun:
        return None
    return max(begun, key=lambda pattern: len(pattern.prefix)).make(name, where)


def _unknown(name: str, base: str, where: str | None) -> InputError:
    """The nearest name, patterns filled in with what was written, and all that there are."""
    rows = [row.name for row in ROWS]
    stem, _, number = base.rpartition("-")
    like = {
        f"{p.prefix}{number}" if p.matches(f"{p.prefix}{number}") and stem else p.example
        for p in PATTERNS
    }
    short = {p.prefix.rstrip("-"): p.example for p in PATTERNS}
    near = [short[base]] if base in short else get_close_matches(base, [*rows, *like], n=1)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    forms = [*rows, *map(str, PATTERNS), *(suffix.form for suffix in SUFFIXES)]
    return InputError(
        f"unknown algorithm {name!r}", where=where, hint=f"{meant}Known: {', '.join(forms)}"
    )
