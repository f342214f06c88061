"""The links agent: ``python -m testbed.links.agent.server``, the only part that changes the
network.

It takes requests as JSON lines on standard input, ``{"id": 1, "op": "stop", …}``, and answers each
on standard output, ``{"id": 1, "ok": …}`` or ``{"id": 1, "error": …}``; between them come records
as ``{"records": [...]}``. When its input closes, or on SIGTERM or SIGINT, it undoes everything it
made.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from threading import Thread

from testbed.errors import ExperimentError, WireError, shortage
from testbed.links.agent.protocol import (
    InterfaceSeen,
    LinkSettings,
    Object,
    Watched,
    change_from_json,
    dump,
    error_to_json,
    lines_of,
    read,
)
from testbed.links.capabilities import Capabilities, probe
from testbed.links.network.bridges import acquaint, bridge_of
from testbed.links.network.connections import SocketWatch
from testbed.links.network.devices import locate
from testbed.links.network.topology import build, build_racks, remove, remove_racks
from testbed.links.network.wiring import RackPlan, Racks, Resident, TopologyPlan
from testbed.links.replay.delivery_report import EndReport
from testbed.links.replay.link_player import LinkPlayer, end_report
from testbed.links.replay.replay import Replay
from testbed.links.shaper import Shaper
from testbed.process import PRIORITY, InterruptibleInput, raise_open_files, schedule_threads
from testbed.scenario.link_state import FRAME_BYTES, LinkDirection, LinkState
from testbed.topology import Cable, Interface

_ATTENDANT = PRIORITY - 10
"""Priority of the agent's other threads while a replay runs."""
_QUOTED = 60
"""Characters of a line that is no request, in its answer."""


class AgentServer:
    """Does what requests ask for. ``say`` sends a message to the client, from any thread."""

    def __init__(self, say: Callable[[Object], None]) -> None:
        self._say = say
        self._shaper = Shaper()
        self._replay: Replay | None = None
        self._topology: TopologyPlan | None = None
        self._racks: list[RackPlan] = []
        self._watch: SocketWatch | None = None
        self.keep = False

    def hear(self, line: str) -> Object:
        """Carry out a line as a request; one that is none is answered with an error."""
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError("it is no object")
        except (ValueError, RecursionError) as error:
            given = f"{line.strip()[:_QUOTED]!r}"
            wrong = ExperimentError(f"no request of the links agent: {given}: {error}")
            return {"id": None, "error": error_to_json(wrong)}
        return self.answer(request)

    def answer(self, request: Object) -> Object:
        """Carry out a request; an error becomes part of the answer."""
        try:
            operation = getattr(self, f"do_{request['op']}")
            return {"id": request["id"], "ok": operation(request)}
        except Exception as error:  # whatever it is, the client must hear of it
            return {"id": request.get("id"), "error": error_to_json(shortage(error) or error)}

    def undo(self) -> list[str]:
        """Remove everything that was made; returns what could not be, in words."""
        if self._replay is not None:
            self._replay.finish()
        schedule_threads(None, Replay)
        if self._watch is not None:
            self._watch.close()
        failures = self._shaper.remove()
        for plan in reversed(self._racks):
            failures += remove_racks(plan)
        if self._topology is not None:
            failures += remove(self._topology)
        self._replay = self._topology = self._watch = None
        self._racks = []
        return failures

    def do_capabilities(self, _: Object) -> Capabilities:
        """Return the kernel's capabilities."""
        return probe()

    def do_build(self, request: Object) -> dict[str, tuple[Interface, Interface]]:
        """Make nodes as namespaces."""
        plan = self._topology = read(TopologyPlan, request["plan"])
        return build(plan)

    def do_racks(self, request: Object) -> Racks:
        """Put nodes into racks."""
        plan = read(RackPlan, request["plan"])
        self._racks.append(plan)
        return build_racks(plan)

    def do_acquaint(self, request: Object) -> None:
        """Have everyone on a data network know everyone else beforehand."""
        residents = read(list[Resident], request["residents"])
        acquaint([*residents, bridge_of(read(Resident, request["switch"]))])

    def do_unbuild(self, _: Object) -> list[str]:
        """Remove everything that was made."""
        return self.undo()

    def do_keep(self, _: Object) -> None:
        """Leave everything standing when the input closes."""
        self.keep = True

    def do_locate(self, request: Object) -> tuple[Interface, Interface]:
        """A container's interface and its peer here."""
        return locate(request["netns"], request["mac"])

    def do_prepare(self, request: Object) -> Object:
        """Shape every end and read it back."""
        if self._replay is not None:
            raise ExperimentError("the links are in use: stop the replay before preparing another")
        cables = read(dict[str, Cable], request["cables"])
        shapes = {
            LinkDirection(*end): LinkState.from_json(shape) for end, shape in request["shapes"]
        }
        if unknown := sorted({end.link for end in shapes} - set(cables)):
            raise ExperimentError(f"links without a cable: {', '.join(unknown)}")
        impaired = read(list[LinkDirection], request["impaired"])
        settings = read(LinkSettings, request["settings"])
        return self._shaper.prepare(cables, shapes, settings, impaired)

    def do_start(self, request: Object) -> None:
        """Begin to replay at t0."""
        if self._replay is not None or not self._shaper.ends:
            raise ExperimentError("links must be prepared, and not be in use, before a start")
        schedule_threads(_ATTENDANT, Replay)
        shapes, lines = self._shaper.shapes, self._shaper.lines
        settings = self._shaper.settings
        bundle, gapped = settings.segments * FRAME_BYTES, settings.gapped
        tracks = {
            end: LinkPlayer(shaped, shapes[end], lines.get(end), bundle_bytes=bundle, gapped=gapped)
            for end, shaped in self._shaper.ends.items()
        }
        replay = Replay(tracks, request["t0_ns"], lambda records: self._say({"records": records}))
        _feed(replay, request)
        replay.start()
        # only one that has begun can be ended
        self._replay = replay

    def do_feed(self, request: Object) -> None:
        """Take more of the history."""
        if self._replay is not None:
            _feed(self._replay, request)

    def do_stop(self, _: Object) -> list[EndReport]:
        """End the replay and report."""
        replay = self._replay
        if replay is None:
            raise ExperimentError("there is no replay to stop")
        replay.finish()
        self._replay = None  # not before: who undoes the links meanwhile must wait for its thread
        schedule_threads(None, Replay)
        tracks, segments = replay.tracks.values(), self._shaper.settings.segments
        return [end_report(track, segments, replay.sleeper.realtime) for track in tracks]

    def do_watch(self, request: Object) -> dict[str, list[InterfaceSeen]]:
        """Follow all connections of some namespaces from now on."""
        if self._watch is not None:
            raise ExperimentError("connections are being followed already")
        self._watch = SocketWatch(request["nodes"])
        if self._replay is not None:
            schedule_threads(_ATTENDANT, Replay)
        return self._watch.interfaces()

    def do_watched(self, _: Object) -> dict[str, Watched]:
        """End that, and say what there was."""
        watch, self._watch = self._watch, None
        if watch is None:
            raise ExperimentError("no connections are being followed")
        return watch.end()


def _feed(replay: Replay, request: Object) -> None:
    changes = [change_from_json(fields) for fields in request["changes"]]
    if unknown := sorted({str(change.end) for change in changes} - set(map(str, replay.tracks))):
        raise ExperimentError(f"changes of links that are not shaped: {', '.join(unknown)}")
    replay.add_changes(changes, request["known_to_s"])


def serve(lines: Iterable[str], kind: type[AgentServer] = AgentServer) -> None:
    """Answer requests until there are no more, then undo everything."""
    outgoing: SimpleQueue[Object | None] = SimpleQueue()
    writer = Thread(target=_write, args=(outgoing,), name="writer", daemon=True)
    writer.start()
    agent = kind(outgoing.put)
    try:
        for line in lines:
            outgoing.put(agent.hear(line))
    finally:
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(name, signal.SIG_IGN)
        for failure in [] if agent.keep else agent.undo():
            sys.stderr.write(f"links agent: not undone: {failure}\n")
        outgoing.put(None)
        writer.join(timeout=1.0)


def _write(outgoing: SimpleQueue[Object | None]) -> None:
    """A thread of its own: whoever has something to say never waits for the pipe."""
    while (message := outgoing.get()) is not None:
        if "records" in message:
            message = {"records": [record.to_json() for record in message["records"]]}
        try:
            sys.stdout.write(dump(message) + "\n")
            sys.stdout.flush()
        except OSError:
            return


def main(kind: type[AgentServer] = AgentServer) -> None:
    """Serve standard input.

    While links are replayed all threads are real-time, the replay above the others: one that held
    the interpreter's lock while ordinary processes keep it from running would make the replay late.
    At other times none is: what the agent computes then takes up to a second, and everything else
    on its processor would stand still, with whatever lock it has.
    """
    raise_open_files()
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, lambda *_: sys.exit(0))
    try:
        serve(lines_of(InterruptibleInput.as_text()), kind)
    except WireError as error:
        raise SystemExit(f"links agent: {error}") from None
    except (OSError, RuntimeError, MemoryError) as error:
        if (lack := shortage(error)) is None:
            raise
        raise SystemExit(f"links agent: {lack}") from None


if __name__ == "__main__":
    main()
