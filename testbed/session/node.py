"""A node's process: ``python -m testbed.session.node --name worker-0 --control 10.0.0.1:7077``.

It lives for a whole ``testbed run`` (torch is imported once) and takes one job after the other over the
control network. When that connection closes, it ends: nothing survives its run.
"""

from __future__ import annotations

import argparse
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from testbed.errors import NarrowsError, NodeLost
from testbed.fabric.base import METRICS_PORT
from testbed.fabric.host import HostTask
from testbed.session.jobs import Assignment, run_assignment
from testbed.session.lines import Lines
from testbed.session.switchboard import HEARTBEAT_S

TOKEN_VARIABLE = "NARROWS_TOKEN"
CONNECT_S = 30.0


class NodeProcess:
    """Takes messages from the session and does what they say, one job at a time."""

    def __init__(self, name: str, role: str, lines: Lines, *, trains: bool = True) -> None:
        from testbed.record.exporter import Exporter

        self.name, self.lines = name, lines
        self.trains = trains and role != "host"
        self.inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.assignment: Assignment | None = None
        self.kept = False
        """Whether to stay when the session ends, for inspection."""
        self.exporter = Exporter({"node": name})
        self.exporter.serve(lines.socket.getsockname()[0], METRICS_PORT)

    def serve(self) -> None:
        """Until the session is gone."""
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()
        if self.trains:
            import torch

            torch.set_num_threads(1)
        self.lines.send("up")
        while True:
            self._do(self.inbox.get())

    def _do(self, message: dict[str, Any]) -> None:
        try:
            if message["type"] == "job":
                self.assignment = Assignment.from_json(
                    message, self.lines, self.inbox, self.exporter
                )
                run_assignment(self.assignment)
            elif message["type"] == "flow":
                from testbed.session.flows import run_flows

                self.lines.send("done", summary=run_flows(message))
        except NarrowsError as error:
            self._report(error, str(error))
        except Exception as error:  # the session decides; here it would only be lost
            sys.stderr.write(traceback.format_exc())
            self._report(error, f"{type(error).__name__}: {error}")

    def _end_traffic(self, message: dict[str, Any]) -> None:
        """In a thread of its own: the role may still be at work, and links are to be heard of meanwhile."""
        traffic = self.assignment.traffic if self.assignment is not None else None
        try:
            if traffic is not None and message["part"] == "sources":
                traffic.end_sources()
            elif traffic is not None:
                traffic.end_sinks(message["tests"])
            self.lines.send("ended", part=message["part"])
        except Exception as error:
            self._report(error, f"{type(error).__name__}: {error}")

    def _report(self, error: Exception, text: str) -> None:
        about = {}
        if isinstance(error, NodeLost):
            about = {"node": error.node, "step": error.step, "phase": error.phase}
        code = getattr(error, "exit_code", 1)
        self.lines.send("error", message=text, error=type(error).__name__, exit_code=code, **about)

    def _read(self) -> None:
        """Control messages; those about links are taken in at once, the others in order."""
        try:
            for message in self.lines:
                if message["type"] == "keep":
                    self.kept = True
                elif message["type"] == "end":
                    HostTask(partial(self._end_traffic, message))
                elif message["type"] != "link":
                    self.inbox.put(message)
                elif self.assignment is not None:
                    self.assignment.link(message["sample"])
        finally:
            if self.kept:
                threading.Event().wait()
            os._exit(1)  # the session is gone, and a role may be blocked anywhere

    def _beat(self) -> None:
        while True:
            time.sleep(HEARTBEAT_S)
            with suppress(OSError):  # the reader notices that the session is gone
                self.lines.send("alive")


def main(arguments: Sequence[str] | None = None) -> None:
    """Connect to the session and serve it."""
    parser = argparse.ArgumentParser(prog="testbed.session.node")
    parser.add_argument("--name", required=True)
    parser.add_argument("--role", default="worker")
    parser.add_argument("--control", required=True, metavar="HOST:PORT")
    parser.add_argument("--untrained", action="store_true", help="nothing will be trained")
    options = parser.parse_args(arguments)
    host, _, port = options.control.rpartition(":")
    lines = Lines(_connect(host, int(port)))
    lines.send("hello", node=options.name, token=os.environ[TOKEN_VARIABLE])
    NodeProcess(options.name, options.role, lines, trains=not options.untrained).serve()


def _connect(host: str, port: int) -> socket.socket:
    give_up = time.monotonic() + CONNECT_S
    while True:
        try:
            connected = socket.create_connection((host, port), timeout=CONNECT_S)
            connected.settimeout(None)
            return connected
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    main()
