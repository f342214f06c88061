"""Parts added to an algorithm by its name: ``laplace-0.01+int8``, ``topk-0.01+qsgd-4bit+layers+overlap``.

    <algorithm>[+<value coding>][+layers][+overlap]

in this order, so that one algorithm has one name. ``<algorithm>`` is a row or matches a pattern.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches

from testbed.algorithms.algorithm import Algorithm
from testbed.algorithms.rows import WRITTEN
from testbed.compress.base import codings
from testbed.compress.recipe import Choice
from testbed.errors import InputError

LAYERS, OVERLAP, EXACT = "layers", "overlap", "fp32"

BUCKET_BYTES = 1 << 16
"""Of what overlaps, where nothing else is said: small enough for most layers of a model to have a bucket of their own,
and large beside what a message costs."""


@dataclass(frozen=True, slots=True)
class Suffix:
    """What can follow a name, for people."""

    form: str
    about: str


SUFFIXES = (
    Suffix("+<values>", "values on the way up are written so, e.g. laplace-0.01+int8"),
    Suffix(f"+{LAYERS}", f"every parameter is compressed by itself, e.g. topk-0.01+{LAYERS}"),
    Suffix(f"+{OVERLAP}", f"layers travel while others are computed, e.g. none+{OVERLAP}"),
)


def ways() -> list[str]:
    """What ``<values>`` can be: names of value codings, and of those with options."""
    return sorted({*codings, *WRITTEN} - {EXACT})


def extended(base: Algorithm, suffixes: list[str], where: str | None) -> Algorithm:
    """``base`` with what ``suffixes`` say. Raises InputError at ``where`` for ones that mean nothing."""
    rest, name = list(suffixes), "+".join([base.name, *suffixes])
    written = base
    if rest and rest[0] in ways():
        written = _written(base, rest.pop(0), name, where)
    if rest[:1] == [LAYERS]:
        written = replace(written, buckets="layer")
        rest.pop(0)
    if rest[:1] == [OVERLAP]:
        size = written.bucket_bytes or BUCKET_BYTES
        written = replace(written, overlap=True, bucket_bytes=size)
        rest.pop(0)
    if rest:
        raise _meaningless(name, rest[0], where)
    about = f"{base.about.rstrip('.')}; with {', '.join(suffixes)}."
    return replace(written, name=name, about=about)


def _written(base: Algorithm, suffix: str, name: str, where: str | None) -> Algorithm:
    """``base`` with values written as ``suffix`` says."""
    if base.values != EXACT:
        raise InputError(
            f"algorithm {name!r}: {base.name!r} has a value coding already, {base.values!r}",
            where=where,
        )
    coding = WRITTEN.get(suffix, Choice(suffix))
    return replace(base, values=coding.name, values_options=dict(coding.options))


def _meaningless(name: str, suffix: str, where: str | None) -> InputError:
    known = [*ways(), LAYERS, OVERLAP]
    near = get_close_matches(suffix, known, n=1)
    return InputError(
        f"algorithm {name!r}: nothing is known of '+{suffix}' in this place",
        where=where,
        hint=(f"Did you mean '+{near[0]}'? " if near and near[0] != suffix else "")
        + f"A name is <algorithm>[+<values>][+{LAYERS}][+{OVERLAP}], with <values> one of {', '.join(ways())}",
    )
