"""Trials on real nodes and links: a session's fabric, agent and processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from testbed.algorithms import Algorithm
from testbed.record.directory import RunDirectory
from testbed.scenario.expand import racks
from testbed.session.experiment import Experiment
from testbed.session.judgement import conclude
from testbed.session.progress import Progress
from testbed.session.session import Session
from testbed.session.trial import Trial
from testbed.train.peers import multicasts
from testbed.user_files import PinnedFolder


class RealTrial(Trial):
    """A trial that judges itself."""

    def conclude(self) -> dict[str, Any]:
        """Judge the links by what was measured; see ``judgement.conclude``."""
        return conclude(self)


class RealStage(Session):
    """A session as a stage (``testbed.session.stage``)."""

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
