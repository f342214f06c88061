"""The hosts beside a job: nodes with processes of ours, which make the scenario's cross traffic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from testbed.algorithms import resolve
from testbed.scenario.load import Loaded
from testbed.session.crossing import Crossing
from testbed.session.session import Session
from testbed.train.job import Job

READY_S = 60.0
"""How long hosts may take to be ready."""


class Bystanders:
    """All hosts of a session. ``write`` gets the records of their traffic."""

    def __init__(
        self, session: Session, loaded: Loaded, write: Callable[[dict[str, Any]], None]
    ) -> None:
        self._session, self._scenario = session, loaded.wall()
        self._crossing = Crossing(session, self._scenario, loaded.timeline(), write)
        self._hosts = {spec.name: spec for spec in session.specs if spec.role == "host"}
        self._t0_ns: int | None = None

    @property
    def crossed(self) -> set[str]:
        """Names of the links that their traffic may be on."""
        return self._crossing.links

    def prepare(self) -> None:
        """Tell every host of its part, and wait until all are ready."""
        for name in self._hosts:
            self._hand_over(name)
        self._session.await_all("ready", self._hosts, READY_S, self.take)

    def start(self, t0_ns: int) -> None:
        """Their traffic counts from t0."""
        self._t0_ns = t0_ns
        for name in self._hosts:
            self._session.tell(name, "start", t0_ns=t0_ns)

    def take(self, node: str, message: dict[str, Any]) -> None:
        """A host's message; one that was restarted joins in again. Raises ExperimentError for traffic that failed."""
        kind = message["type"]
        if kind == "burst":
            self._crossing.take(message["record"])
        elif kind == "up" and self._t0_ns is not None:
            self._hand_over(node)
        elif kind == "ready" and self._t0_ns is not None:
            self._session.tell(node, "start", t0_ns=self._t0_ns)

    def end(self) -> None:
        """Of their traffic; nothing where it never started."""
        if self._t0_ns is None:
            return
        self._t0_ns = None
        self._crossing.end(self.take)

    def _hand_over(self, name: str) -> None:
        """A host trains nothing: of its job only its name matters."""
        scenario, spec = self._scenario, self._hosts[name]
        job = Job(
            run=1, algorithm=resolve("none"), train=scenario.train, seed=0, workers=0, node=name,
            rank=spec.rank, peer=spec.peer, peer_timeout_s=float(scenario.peer_timeout),
        )  # fmt: skip
        labels = {"run": self._session.directory.name, "scenario": scenario.name}
        self._session.tell(
            name, "job", job=job.to_json(), role="host", peers={}, addresses={},
            traffic=self._crossing.part(name),
            labels={**labels, "algorithm": "none", "role": "host", "node": name},
        )  # fmt: skip
