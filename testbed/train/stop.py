"""When a run ends."""

from __future__ import annotations

from testbed.errors import InputError
from testbed.scenario.model import Stop


class Stopping:
    """Decides which step is the last: by number of steps or epochs, or the one after an evaluation has
    reached the accuracy (while that is measured, workers compute the next step already)."""

    def __init__(self, stop: Stop, steps_per_epoch: int) -> None:
        limits = [stop.steps, stop.epochs and stop.epochs * steps_per_epoch]
        self.limit = min((limit for limit in limits if limit), default=None)
        self._accuracy, self._reached = stop.accuracy, False
        if self.limit is None and stop.accuracy is None:
            raise InputError(
                "the run would never end", where="train.stop", hint="Give steps, epochs or accuracy"
            )

    def saw(self, accuracy: float) -> None:
        """Take in the accuracy of an evaluation."""
        self._reached |= self._accuracy is not None and accuracy >= self._accuracy

    def ends(self, step: int) -> bool:
        """Whether ``step`` is the last."""
        return self._reached or step == self.limit
