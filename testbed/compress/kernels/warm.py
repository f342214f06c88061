"""Every kernel compiled, or read from the disk, before it is needed: ``python -m testbed.compress.kernels.warm``."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from testbed.compress.kernels.cache import alone

MODULES = (
    "loops_measure",
    "loops_moments",
    "loops_choose",
    "loops_digits",
    "loops_sparse",
    "loops_random",
    "loops_pack",
    "loops_half",
    "loops_int8",
    "loops_maxmin",
    "loops_qsgd",
    "loops_signs",
    "loops_ternary",
    "loops_lowrank",
    "loops_index",
    "loops_seeded",
)
"""Each has a tuple ``WARM`` of functions without arguments, which call its loops once on tiny arrays."""


@cache
def all() -> None:  # noqa: A001
    """Load every kernel; quick after the first time. Processes that start together compile once."""
    with alone():
        for name in MODULES:
            for call in import_module(f"{__package__}.{name}").WARM:
                call()


if __name__ == "__main__":
    all()
