"""One run on links, real or modelled: shape, start, watch, stop, and conclude."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from testbed.algorithm import Algorithm
from testbed.errors import NarrowsError, NodeLost
from testbed.records.run_directory import RunDirectory
from testbed.runner.experiment import Experiment
from testbed.runner.manifest_writer import describe
from testbed.runner.progress import Progress
from testbed.runner.signals import located, shielded

if TYPE_CHECKING:
    from testbed.links.agent.client import LinkReport


@dataclass(frozen=True)
class TrialPlan:
    """The work of a trial, and where its records go. ``row``: what the manifest says of it."""

    experiment: Experiment
    algorithm: Algorithm
    seed: int
    row: Mapping[str, Any]
    directory: RunDirectory
    progress: Progress

    @classmethod
    def create(
        cls,
        experiment: Experiment,
        algorithm: Algorithm,
        seed: int,
        out: Path,
        progress: Progress,
        row: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make the run directory, too. ``row``: the algorithm's own unless given."""
        row = algorithm.to_json() if row is None else row
        directory = RunDirectory.create(
            out,
            scenario_name=experiment.scenario.name,
            algorithm=row["name"],
            seed=seed,
            content_hash=experiment.loaded.hash,
        )
        return cls(experiment, algorithm, seed, row, directory, progress)

    def for_seed(self) -> Self:
        """Return this plan with links that begin where the seed says; see ``Experiment``."""
        return replace(self, experiment=self.experiment.for_seed(self.seed))


@dataclass
class TrialOutcome:
    """Results that a trial left in memory; everything else is in its directory."""

    links: LinkReport | None = None
    shaped: Sequence[Mapping[str, Any]] = ()
    """Every link direction before t0, as requested and as the kernel had it."""
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Each node's ``done`` message."""
    strangers: int = 0
    """Connections to the control network that were no node's."""
    backlog_drops: int = 0
    """Packets that the host itself dropped meanwhile, for want of time."""
    error: BaseException | None = None
    """The error that ended the trial before its time."""
    crossed: frozenset[str] = frozenset()
    """Names of the links that cross traffic may be on: their bytes are not the training's alone."""

    @property
    def link_reports(self) -> list[dict[str, Any]]:
        """The report of each link direction; none where the trial ended before."""
        return [] if self.links is None else self.links.to_json()["links"]

    @property
    def until_s(self) -> float:
        """When links were looked at last."""
        return max((float(link["to_s"]) for link in self.link_reports), default=0.0)


class LinkTrial(ABC):
    """``carry_out`` is the whole of it; subclasses say what its parts are."""

    has_steps = True

    def __init__(self, plan: TrialPlan) -> None:
        self.plan, self.outcome = plan, TrialOutcome()
        self.experiment, self.scenario = plan.experiment, plan.experiment.scenario
        self.timeline = plan.experiment.timeline
        self.directory, self.progress = plan.directory, plan.progress
        self.steps: dict[str, int] = {}
        """The last step that each node has finished."""

    @abstractmethod
    def shape(self) -> None:
        """Bring every link to its state at t0, and write the manifest."""

    @abstractmethod
    def conclude(self) -> dict[str, Any]:
        """Find the verdict, write the summary, return the run's entry."""

    @abstractmethod
    def collect(self) -> None:
        """Copy logs into the run directory, which stands alone."""

    @abstractmethod
    def _perform(self) -> None:
        """Start everything, and wait for its end."""

    @abstractmethod
    def _stop(self) -> None:
        """Stop what was started, whatever became of it."""

    def run(self) -> None:
        """From t0 to the end. Raises what made it fail, with the step filled in."""
        try:
            self._perform()
        except NodeLost as lost:
            self.outcome.error = located(lost, self.steps) if self.has_steps else lost
            raise self.outcome.error from lost
        except BaseException as error:
            self.outcome.error = error
            raise
        finally:
            self._stop()

    def carry_out(
        self,
        begin: Callable[[], None] = lambda: None,
        conclude: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        """Shape the links, run, and conclude; a trial that fails leaves its finished records, too.

        ``begin`` is called once there is a manifest, ``conclude`` with the run's entry.
        """
        try:
            self.shape()
            begin()
            self.collect()
        except BaseException:
            self.directory.close()  # without a manifest there is nothing to conclude
            raise
        try:
            self.run()
        except BaseException:
            try:
                self._finish(conclude)
            except (NarrowsError, OSError) as error:  # what ended the run is what is told
                self.progress.insist(f"this failed run could not be summed up: {error}")
            raise
        self._finish(conclude)

    def _finish(self, conclude: Callable[[dict[str, Any]], None]) -> None:
        with shielded():
            try:
                conclude(self.conclude())
            finally:
                self.directory.close()
                self.collect()

    def _describe(
        self,
        links: Iterable[Mapping[str, Any]],
        fabric: str,
        model: Mapping[str, Any] | None = None,
        hosts: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write the manifest. ``links``: as requested and as they are; ``hosts``: of
        a swarm."""
        plan, loaded, specs = self.plan, self.experiment.loaded, self.experiment.specs
        describe(
            self.directory,
            loaded,
            specs,
            links,
            fabric=fabric,
            algorithm=plan.row,
            seed=plan.seed,
            model=model,
            hosts=hosts,
        )
