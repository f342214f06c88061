"""Which redundancy makes a step shortest: more of it is more to compute and less to send."""

from __future__ import annotations

from typing import Literal, NamedTuple

from testbed.exchange.coded.load import most_received, most_work, total_load

Way = Literal["up", "down"]


class Prediction(NamedTuple):
    """A step's parts with redundancy ``r``, in seconds."""

    r: int
    calc_s: float
    comm_s: float

    @property
    def step_s(self) -> float:
        """Both."""
        return self.calc_s + self.comm_s

    def __str__(self) -> str:
        return f"r = {self.r}: {self.calc_s:.4g} + {self.comm_s:.4g} = {self.step_s:.4g} s"


class Choice(NamedTuple):
    """The best redundancy, why it is, and what was expected of each."""

    r: int
    why: str
    table: tuple[Prediction, ...]


def predict(
    scheme: str, nodes: int, t_calc_s: float, t_comm_s: float, bottleneck: Way = "down"
) -> tuple[Prediction, ...]:
    """For every r below ``nodes``: work(r)·T_calc + T_comm·load(r)/load(1), with the times measured at r = 1.

    The paper's r·T_calc + T_comm/r, with what the scheme really computes and sends. ``bottleneck``: load is what all send
    where links are slower ``up``; where they are not, it is what comes down to one node, which is more.
    """
    load = total_load if bottleneck == "up" else most_received
    least = load(scheme, nodes, 1)
    return tuple(
        Prediction(
            r,
            t_calc_s * float(most_work(scheme, nodes, r)),
            t_comm_s * float(load(scheme, nodes, r) / least),
        )
        for r in range(1, nodes)
    )


def choose_r(
    scheme: str, nodes: int, t_calc_s: float, t_comm_s: float, bottleneck: Way = "down"
) -> Choice:
    """The r of the shortest step; of several the least."""
    table = predict(scheme, nodes, t_calc_s, t_comm_s, bottleneck)
    best = min(table, key=lambda one: (one.step_s, one.r))
    others = "; ".join(str(one) for one in table)
    why = (
        f"computation takes {t_calc_s:.4g} s and communication {t_comm_s:.4g} s at r = 1, "
        f"so that a step is expected to be shortest with r = {best.r} ({others})"
    )
    return Choice(best.r, why, table)
