"""The replay of a trace of messages on real nodes and links."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from testbed.algorithms import Algorithm
from testbed.fabric.base import NodeSpec
from testbed.record.directory import RunDirectory
from testbed.record.verdict import Verdict
from testbed.scenario.expand import racks
from testbed.session.judgement import conclude
from testbed.session.play import Play, look, summed_up
from testbed.session.progress import Progress
from testbed.session.session import Session
from testbed.session.spare import Spare
from testbed.session.trial import Trial


class PlayTrial(Trial):
    """A trial whose nodes play parts of a trace."""

    def __init__(
        self, session: Session, play: Play, directory: RunDirectory, progress: Progress
    ) -> None:
        row = Algorithm(play.label)
        super().__init__(session, play.experiment, row, play.seed, directory, progress)
        self._play = play

    def row(self) -> dict[str, Any]:
        """See ``Trial``."""
        return self._play.row()

    def conclude(self) -> dict[str, Any]:
        """Judge the links by what was measured; see ``judgement.conclude``."""

        def summary(path: Path, verdict: Verdict) -> dict[str, Any]:
            return summed_up(path, verdict, self.outcome.done)

        return conclude(self, look, summary)

    def _assign(self) -> None:
        self._parts = self._play.parts(secrets.randbits(63))
        for name in self._specs:
            self._hand_job(name)

    def _task(self, spec: NodeSpec) -> dict[str, Any]:
        return {"part": self._parts[spec.name].to_json()}

    def _spare(self) -> Spare:
        """Every node is wanted."""
        return Spare()


def session_of(
    play: Play, fabric: str, directory: Path, least: int, *, quiet: bool, keep: bool
) -> Session:
    """Nodes that do not train, on links of ``play``'s scenario. ``least`` as in ``Session``."""
    experiment = play.experiment
    return Session(
        experiment.specs,
        fabric,
        directory,
        quiet=quiet,
        keep_failed=keep,
        racks=racks(experiment.scenario),
        trains=False,
        least=least,
    )
