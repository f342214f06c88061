"""What every suite is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.bench.sound import ATTEMPTS


@dataclass(frozen=True, slots=True)
class Setup:
    """``repeat``: how often everything is measured. ``quick``: only to see that it works."""

    directory: Path
    """Where runs and files of this benchmark go."""
    say: Callable[[str], None]
    repeat: int = 5
    quick: bool = False

    def seconds(self, usual: float, quick: float) -> float:
        """How long to measure."""
        return quick if self.quick else usual

    @property
    def attempts(self) -> int:
        """How often a training run is made at most, where it comes out invalid."""
        return 1 if self.quick else ATTEMPTS

    @property
    def repetitions(self) -> int:
        """Once where it need only work."""
        return 1 if self.quick else self.repeat
