"""The controller that does not adapt."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from testbed.control.base import Observation
from testbed.control.options import Density, Options, read_options


class FixedOptions(Options):
    """Options of ``fixed``."""

    density: Density = Field(1.0, description="Share of the elements sent in every step.")


class Fixed:
    """The same density in every step."""

    def __init__(self, *, seed: int, **options: Any) -> None:
        del seed
        self.options = read_options("fixed", FixedOptions, options)

    def density(self) -> float:
        """``options.density``."""
        return self.options.density

    def observe(self, seen: Observation) -> None:
        """Nothing to learn."""

    def state(self) -> dict[str, Any]:
        """There is none."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """There is none."""
