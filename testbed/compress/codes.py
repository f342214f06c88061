"""Value codings by the number that stands for them on the wire."""

from __future__ import annotations

from functools import cache

from testbed.compress import builtin as _builtin
from testbed.compress.base import ValuesFactory, codings
from testbed.errors import WireError

del _builtin


def coding_of(code: int) -> ValuesFactory:
    """Raises WireError for a number that nobody has."""
    if code not in _by_code():
        _by_code.cache_clear()  # it may have been registered since
    try:
        return _by_code()[code]
    except KeyError:
        raise WireError(f"unknown value coding {code}") from None


@cache
def _by_code() -> dict[int, ValuesFactory]:
    """Raises ValueError where two codings have one number, or one has a number that is no byte."""
    found: dict[int, ValuesFactory] = {}
    for name in codings:
        coding = codings.get(name)
        if coding.code in found or not 0 <= coding.code < 256:
            raise ValueError(f"value coding {name!r} cannot have the number {coding.code}")
        found[coding.code] = coding
    return found
