"""What TCP would remember of a peer from one connection to the next: a threshold, a round-trip time.

What one algorithm's connections have learned about a link must not be where the next one's begin.
"""

from __future__ import annotations

from pathlib import Path

from testbed.links.namespaces import inside

SETTING = "net.ipv4.tcp_no_metrics_save"
"""As sysctl(8) calls it; a network namespace has its own."""

_FILE = Path("/proc/sys", *SETTING.split("."))


def forget_connections() -> None:
    """In the calling thread's namespace, connections leave nothing behind for later ones."""
    _FILE.write_text("1")


def remembers_connections(netns: str | None) -> bool:
    """Whether a namespace's connections leave something behind for later ones."""
    with inside(netns):
        return _FILE.read_text().strip() == "0"
