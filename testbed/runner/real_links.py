"""Trials on real nodes and links: training, and replays of communication traces."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from testbed.algorithms import Algorithm
from testbed.fidelity.verdict import Verdict
from testbed.records.run_directory import RunDirectory
from testbed.runner.comm_replay_trial import CommReplay, look, summed_up
from testbed.runner.experiment import Experiment
from testbed.runner.judge import write_verdict
from testbed.runner.progress import Progress
from testbed.runner.session import LostWorkerBudget, Session
from testbed.runner.trial import Trial
from testbed.scenario.expand import racks
from testbed.topology import NodeSpec
from testbed.training.membership import multicasts
from testbed.user_files import PinnedFolder


class RealTrial(Trial):
    """A trial that judges itself."""

    def conclude(self) -> dict[str, Any]:
        """Judge the links by what was measured; see ``judge.write_verdict``."""
        return write_verdict(self)


class LinkBackend(Session):
    """A session as a stage (``testbed.runner.run``)."""

    def __init__(
        self,
        experiment: Experiment,
        fabric: str,
        directory: Path,
        *,
        quiet: bool = False,
        keep_failed: bool = False,
        least: int = 1,
    ) -> None:
        super().__init__(
            experiment.specs,
            fabric,
            directory,
            quiet=quiet,
            keep_failed=keep_failed,
            folders=experiment.folders,
            racks=racks(experiment.scenario),
            multicast=any(multicasts(algorithm) for algorithm in experiment.algorithms),
            least=least,
        )
        self._experiment = experiment
        self._folder = PinnedFolder(directory.resolve())

    def trial(
        self, algorithm: Algorithm, seed: int, directory: RunDirectory, progress: Progress
    ) -> RealTrial:
        """One trial on this session's nodes."""
        experiment = self._experiment.for_seed(seed)
        return RealTrial(self, experiment, algorithm, seed, directory, progress)

    def collect(self, run: RunDirectory) -> None:
        """Logs and the Compose file."""
        self.fabric.save_logs()
        self._folder.copy("compose.yaml", run.folder())
        logs, copies = self._folder.folder("log"), run.folder().folder("log")
        for name in logs.names():
            logs.copy(name, copies)


class PlayTrial(Trial):
    """A trial whose nodes play parts of a trace."""

    def __init__(
        self, session: Session, play: CommReplay, directory: RunDirectory, progress: Progress
    ) -> None:
        row = Algorithm(play.label)
        super().__init__(session, play.experiment, row, play.seed, directory, progress)
        self._play = play

    def row(self) -> dict[str, Any]:
        """See ``Trial``."""
        return self._play.row()

    def conclude(self) -> dict[str, Any]:
        """Judge the links by what was measured; see ``judge.write_verdict``."""

        def summary(path: Path, verdict: Verdict) -> dict[str, Any]:
            return summed_up(path, verdict, self.outcome.done)

        return write_verdict(self, look, summary)

    def _assign(self) -> None:
        self._parts = self._play.parts(secrets.randbits(63))
        for name in self._specs:
            self._hand_job(name)

    def _task(self, spec: NodeSpec) -> dict[str, Any]:
        return {"part": self._parts[spec.name].to_json()}

    def _spare(self) -> LostWorkerBudget:
        """Every node is wanted."""
        return LostWorkerBudget()


def session_of(
    play: CommReplay, fabric: str, directory: Path, least: int, *, quiet: bool, keep: bool
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
