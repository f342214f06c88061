"""The nodes of a trial in virtual time that train: their roles, and what these record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testbed.algorithms import Algorithm
from testbed.errors import InputError
from testbed.exchange.kinds import exchanges
from testbed.fabric.base import NodeSpec
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.network import VirtualNetwork
from testbed.fabric.sim.node import VirtualNode
from testbed.record.directory import RunDirectory
from testbed.session.ensemble import Ensemble
from testbed.session.experiment import Experiment, Jobs
from testbed.session.message_sizes import unsent_bytes
from testbed.session.progress import Progress
from testbed.train.roles import Role, role

if TYPE_CHECKING:
    from testbed.train.workshop import Workshop

OWN_WORKERS = 32
"""So many workers have models of their own, and the very gradients of other fabrics; more share one model."""
_RUN = 1
"""Marks the frames of a run on real fabrics; here no others can come between."""


class Cast(Ensemble):
    """Servers and workers that train."""

    def __init__(
        self,
        experiment: Experiment,
        algorithm: Algorithm,
        seed: int,
        network: VirtualNetwork,
        directory: RunDirectory,
        progress: Progress,
    ) -> None:
        super().__init__(experiment.specs, network, directory, progress)
        self.measured = experiment.scenario.train.pace is None
        kind = exchanges.get(algorithm.exchange)
        workers = sum(spec.role == "worker" for spec in self.specs)
        self.spares = kind.spares(algorithm.exchange_options, workers)
        self._exchange = algorithm.exchange
        self._leave = any(one.kind == "absent" for one in experiment.scenario.events)
        self._train, self._seed = experiment.scenario.train, seed
        self._jobs = Jobs(experiment, algorithm, seed, _RUN)

    def roles(self) -> dict[str, Role]:
        """All of them by name, not prepared."""
        workshop = self._workshop()
        return {spec.name: self._role(spec, workshop) for spec in self.specs}

    def _workshop(self) -> Workshop | None:
        if self._train.gradients != "real":
            return None
        if sum(spec.role == "worker" for spec in self.specs) <= OWN_WORKERS:
            from testbed.train.workshop import OwnWorkshop

            return OwnWorkshop()
        if self._leave:
            raise InputError(
                f"more than {OWN_WORKERS} simulated workers share one replica, and those that are `absent` need their own",
                hint=f"Simulate at most {OWN_WORKERS} workers",
            )
        if not exchanges.get(self._exchange).lockstep:
            raise InputError(
                f"more than {OWN_WORKERS} simulated workers share one replica, and by {self._exchange!r} they would "
                "need one each",
                hint=f"Simulate at most {OWN_WORKERS} workers",
            )
        from testbed.train.common import CommonWorkshop

        return CommonWorkshop()

    def _role(self, spec: NodeSpec, workshop: Workshop | None) -> Role:
        job = self._jobs.of(spec)
        endpoint = VirtualEndpoint(self._network, spec.peer, spec.name, unsent_bytes(job))
        self._endpoints[spec.name] = endpoint
        recording = spec.role == "server" or spec.rank % self.recorded_every == 0
        node = VirtualNode(
            endpoint,
            self._seed,
            self._recorder(spec) if recording else _drop,
            measured=self.measured,
            recording=recording,
        )
        return role(node, job, spec.role, workshop)


def _drop(_: dict[str, Any]) -> None:
    """Not recorded."""
