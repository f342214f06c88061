"""How many elements a density stands for."""

from __future__ import annotations

from testbed.errors import InputError


def check_density(density: float) -> None:
    """Raise InputError unless ``density`` is in (0, 1]."""
    if not 0.0 < density <= 1.0:  # also refuses NaN
        raise InputError(
            f"density {density!r} is outside (0, 1]", hint="It is the share of elements to send."
        )


def element_count(size: int, density: float) -> int:
    """Elements of a vector of ``size`` that ``density`` in (0, 1] asks for; at least one if there is any."""
    check_density(density)
    return min(size, max(1, round(density * size)))
