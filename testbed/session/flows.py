"""A node's part in ``testbed replay``: one bulk TCP flow per direction, to and from the switch."""

from __future__ import annotations

from typing import Any

from testbed.fabric.base import DATA_PORT
from testbed.fabric.host import HostTask
from testbed.links.flow import blast, serve


def run_flows(message: dict[str, Any]) -> dict[str, int]:
    """Send to and receive from the switch until ``stop_at_ns``; returns payload bytes each way."""
    moved = {"up": 0, "down": 0}

    def up() -> None:
        moved["up"] = blast(message["switch"], message["switch_port"], message["stop_at_ns"])

    def down() -> None:
        moved["down"] = serve(message["address"], DATA_PORT, message["stop_at_ns"])

    for task in [HostTask(up), HostTask(down)]:
        task.join()
    return moved
