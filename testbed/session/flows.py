"""A node's part in ``testbed replay``: one bulk TCP flow per direction, to and from the switch."""

from __future__ import annotations

from typing import Any

from testbed.fabric.base import DATA_PORT
from testbed.fabric.host import HostTask
from testbed.session.flow import Sent, blast, serve


def run_flows(message: dict[str, Any]) -> dict[str, int | None]:
    """Send to and receive from the switch until ``stop_at_ns``; sending begins at ``begin_at_ns``.

    Returns payload bytes each way, and the least round-trip time to the switch before (µs; None: not known).
    """
    moved = {"up": Sent(0), "down": Sent(0)}

    def up() -> None:
        where = (message["switch"], message["switch_port"], message["stop_at_ns"])
        moved["up"] = blast(*where, message["begin_at_ns"])

    def down() -> None:
        moved["down"] = Sent(serve(message["address"], DATA_PORT, message["stop_at_ns"]))

    for task in [HostTask(up), HostTask(down)]:
        task.join()
    return {
        "up": moved["up"].bytes,
        "down": moved["down"].bytes,
        "least_rtt_us": moved["up"].least_rtt_us,
    }
