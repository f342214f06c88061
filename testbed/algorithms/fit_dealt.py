"""Whether an algorithm goes with workers that are not alike: in their data, or in the steps they take part in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.algorithms.algorithm import Algorithm
from testbed.errors import InputError
from testbed.exchange.kinds import exchanges

if TYPE_CHECKING:
    from testbed.scenario.model import Scenario


def check_dealt(algorithm: Algorithm, scenario: Scenario, workers: int) -> None:
    """Data that differ by worker, and steps in which not all take part."""
    kind, train = exchanges.get(algorithm.exchange), scenario.train
    asked, leaves = train.participation, any(one.kind == "absent" for one in scenario.events)
    if kind.carries == "blocks" and train.split.alpha is not None:
        raise InputError(
            f"by exchange {algorithm.exchange!r} several workers compute one sample, and with `train.split` each has its own",
            hint="Leave `split` out, or use algorithms whose exchange is `ps`, such as none or topk-0.01",
        )
    if leaves:
        _check_leaving(algorithm, scenario)
    if asked is None:
        return
    if asked.many(workers) > workers:
        raise InputError(
            f"{asked.many(workers)} workers are to take part in a step, and there are {workers}",
            hint=f"Write at most `participation: {{workers: {workers}}}`",
        )
    if not kind.partial or algorithm.bucket_bytes or algorithm.agree:
        raise InputError(
            "`train.participation` needs the exchange `ps`, whole messages and controllers that do not agree: who rests "
            "has no part in other exchanges",
            hint="Use algorithms such as none or topk-0.01, without `bucket_bytes`, `overlap` and `agree`",
        )
    if train.gradients != "real":
        raise InputError(
            f"some workers rest in a step, and `train.gradients` is {train.gradients}",
            hint="Use `gradients: real`, or leave `participation` out",
        )


def _check_leaving(algorithm: Algorithm, scenario: Scenario) -> None:
    """Whether the run goes on while workers are away."""
    train = scenario.train
    servers = sum(group.count or 1 for group in scenario.nodes.values() if group.role == "server")
    leaving = exchanges.get(algorithm.exchange).leaving is not None
    if not leaving or servers != 1 or algorithm.bucket_bytes or algorithm.agree:
        raise InputError(
            "workers that are `absent` need the exchange `ps`, one server, whole messages and controllers that do not agree",
            hint="Use algorithms such as none or topk-0.01, without `bucket_bytes`, `overlap` and `agree`",
        )
    if train.gradients != "real" or train.participation is not None:
        raise InputError(
            "workers that are `absent` take the run's parameters when they return: there have to be some, and nobody else rests",
            hint="Use `gradients: real`, and no `participation`",
        )
