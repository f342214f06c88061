"""The seam between a comparison and whoever carries out its trials: real nodes, or a virtual clock."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self

from testbed.algorithms import Algorithm
from testbed.record.directory import RunDirectory
from testbed.session.progress import Progress


class Performance(Protocol):
    """One algorithm with one seed: ``shape``, ``run``, and ``conclude`` whatever became of it."""

    def shape(self) -> None:
        """Bring the links to their state at t0, and write the manifest."""
        ...

    def run(self) -> None:
        """Train from t0 to the last node's end. Raises what made it fail."""
        ...

    def conclude(self) -> dict[str, Any]:
        """Find the verdict, write the summary, return the run's entry."""
        ...


class Stage(Protocol):
    """Where trials are carried out, one after the other."""

    def __enter__(self) -> Self:
        """Make everything that all trials need."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove it again."""
        ...

    def trial(
        self, algorithm: Algorithm, seed: int, directory: RunDirectory, progress: Progress
    ) -> Performance:
        """One trial, which writes into ``directory``."""
        ...

    def collect(self, run: RunDirectory) -> None:
        """Copy what belongs to all trials into the run directory ``run``, which stands alone."""
        ...
