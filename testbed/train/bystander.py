"""A server of the scenario in a run whose workers exchange gradients among themselves."""

from __future__ import annotations

from typing import Any

from testbed.node import Node
from testbed.train.job import Job


class Bystander:
    """Takes no part: it is there from t0 on, and nothing is sent to it."""

    def __init__(self, node: Node, job: Job) -> None:
        self._node, self._job = node, job

    def prepare(self) -> None:
        """Nothing takes time before t0."""

    def run(self) -> dict[str, Any]:
        """Nothing to do; returns a summary like a server's."""
        self._node.sleep_until(0.0)
        return {
            "role": "bystander",
            "node": self._job.node,
            "steps": 0,
            "end_s": 0.0,
            "accuracy": None,
            "parameters": None,
            "bytes_down": 0,
            "bytes_sent": 0,
            "bytes_received": 0,
        }
