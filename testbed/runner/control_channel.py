"""The control network: JSON objects over a socket, one a line, and the session's end, where nodes
report.

From a node: hello {node, token}, up, ready, event {event}, burst {record}, done {summary, …},
             ended {part}, error {message, …}, alive.
To a node:   job {job, peers, traffic, …}, start {t0_ns}, end, link {sample}, flow {…}, keep.

Every node's messages arrive in one queue. A closed connection or ``SILENCE_S`` without a sign of
life is the loss of that node, whatever its data connections do: an emulated outage is not a crash.
Before it is told to start it may be silent for ``PREPARING_S``. Whoever connects has to say who it
is, soon, in few bytes, and from that node's address where it is known.
"""

from __future__ import annotations

import hmac
import json
import queue
import select
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

import orjson

from testbed.errors import NodeLost, WireError
from testbed.links.network.namespaces import inside
from testbed.transport.endpoint import GREETING_BYTES, PendingConnections

MAX_LINE = 16 << 20
"""Longest line in bytes that is accepted."""
_Needs = dict[str, type | tuple[type, ...]]
_SAYS: dict[str, _Needs] = {
    "hello": {},
    "up": {},
    "ready": {"run": str},
    "alive": {},
    "event": {"event": dict},
    "burst": {"record": dict},
    "done": {"summary": dict},
    "ended": {"part": str},
    "error": {"message": str, "exit_code": int},
}
"""Fields that a node's message has at least, keyed by its type."""
_NUMBER = (int, type(None))
_NODE_LOST: _Needs = {"node": str, "step": _NUMBER}
_SEEN: _Needs = dict.fromkeys(
    ("sender", "bytes", "sent_s", "first_s", "arrived_s", "last_s"), (int, float)
)
"""Fields of each message that a ``round`` or ``served`` event has seen."""
_SENT: _Needs = {
    **dict.fromkeys(("due_s", "start_s", "stop_s"), (int, float)),
    **{"bytes": int, "tests": list, "error": (str, type(None))},
}
_BURSTS: dict[str, _Needs] = {
    "sent": _SENT,
    "stalled": _SENT,
    "received": {"bytes": int, "packets": int, "lost": int, "jitter_s": (int, float)},
    "stopped": {"code": (int, type(None))},
}
"""Fields of what is said of cross traffic, keyed by its kind."""


def check_said(message: dict[str, Any]) -> None:
    """Raise WireError for what no node of ours says, and what no record could hold."""
    kind = message["type"]
    if kind not in _SAYS:
        raise WireError(f"no node says {kind[:40]!r}")
    _check(message, _SAYS[kind], kind)
    try:
        orjson.dumps(message)
    except TypeError as error:  # numbers of more than 64 bits, half a character, too deep
        raise WireError(f"what no record can hold, in {kind!r}: {str(error)[:80]}") from None
    if kind == "event":
        _check_event(message["event"])
    elif kind == "burst":
        record = message["record"]
        _check(record, {"kind": str, "flow": str}, kind)
        if record["kind"] not in _BURSTS:
            raise WireError(f"no node says {record['kind'][:40]!r} of traffic")
        _check(record, _BURSTS[record["kind"]], kind)
        _check_times(record, kind)
    if message.get("error") == "NodeLost":
        _check(message, _NODE_LOST, kind)


def _check_event(event: dict[str, Any]) -> None:
    _check(event, {"kind": str}, "event")
    kind = event["kind"]
    _check(event, {"step": _NUMBER} if "step" in event else {}, kind)
    if (model := _event_models().get(kind)) is not None:
        if (wrong := _wrong_in(model, event)) is not None:
            raise _unusable(wrong, kind)
        _check_times(event, kind)
        for message in event.get("messages", ()) if kind in ("round", "served") else ():
            _check(message, _SEEN, kind)


_ENDLESS_S = 1e12
"""No time of a run, in seconds."""


def _check_times(said: dict[str, Any], kind: str) -> None:
    for name, value in said.items():
        is_time = name.endswith("_s") or name == "density"
        if is_time and isinstance(value, float) and not -_ENDLESS_S < value < _ENDLESS_S:
            raise _unusable(name, kind)


@cache
def _event_models() -> dict[str, Any]:
    """Return a pydantic model of each kind of event, made from its dataclass."""
    from pydantic import create_model  # of which nodes, that import this file too, need nothing

    from testbed.comm_trace import replay_role
    from testbed.records import events

    models: dict[str, Any] = {}
    for known in (*vars(events).values(), replay_role.MessageRecord):
        if isinstance(known, type) and issubclass(known, events.Event) and is_dataclass(known):
            types = get_type_hints(known)
            needs = {
                own.name: (types[own.name], ... if _is_needed(own) else None)
                for own in fields(known)
            }
            models[known.kind] = create_model(known.__name__, **needs)
    return models


def _is_needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _wrong_in(model: Any, event: dict[str, Any]) -> str | None:
    """Return a field that is not of its type; None where all are."""
    from pydantic import ValidationError

    try:
        model.model_validate(event, strict=True)
    except ValidationError as error:
        return str(error.errors()[0]["loc"][0])
    return None


def _unusable(name: str, kind: str) -> WireError:
    return WireError(f"no {name[:40]!r} that can be used in {kind[:40]!r}, as a node says it")


def _check(fields: dict[str, Any], needs: _Needs, kind: str) -> None:
    for name, types in needs.items():
        value = fields.get(name)
        if not isinstance(value, types) or isinstance(value, bool):
            raise _unusable(name, kind)


class JsonLines:
    """A connected socket that speaks in lines; sending is safe from any thread. ``most_bytes``: of
    a line that comes.

    ``patience_s``: how long the other side may read nothing of a line that is sent; None: for ever.
    """

    def __init__(
        self, connected: socket.socket, most_bytes: int = MAX_LINE, patience_s: float | None = None
    ) -> None:
        self.socket, self.most_bytes, self._patience_s = connected, most_bytes, patience_s
        self.line_bytes = 0
        """Size of the line that came last."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = connected.makefile("rb")
        self._lock = threading.Lock()

    def send(self, kind: str, **fields: Any) -> None:
        """Send one object; raises OSError when the other side is gone, TimeoutError when it does
        not read.

        Nothing can be sent after that: part of a line is out.
        """
        line = json.dumps({"type": kind, **fields}, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._patience_s is None:
                self.socket.sendall(line)
            else:
                self._send_soon(line, self._patience_s)

    def _send_soon(self, line: bytes, patience_s: float) -> None:
        """Without a time limit on the socket: its reader waits as long as nothing is said."""
        rest = memoryview(line)
        give_up = time.monotonic() + patience_s
        while rest:
            try:
                rest = rest[self.socket.send(rest, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                if time.monotonic() > give_up:
                    self.shut()
                    raise TimeoutError(f"it has not read for {patience_s:g} s") from None
                with suppress(ValueError):  # closed here meanwhile: the next try says so
                    room = select.poll()
                    room.register(self.socket, select.POLLOUT)
                    room.poll(max(1.0, 1000 * (give_up - time.monotonic())))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Objects as they come, until the other side closes. Raises WireError for anything else."""
        while line := self._line():
            self.line_bytes = len(line)
            if len(line) >= self.most_bytes and not line.endswith(b"\n"):
                raise WireError(
                    f"a line of more than {self.most_bytes} bytes on the control network"
                )
            try:
                message = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise WireError(f"not a line of JSON on the control network: {error}") from error
            if not isinstance(message, dict) or not isinstance(message.get("type"), str):
                raise WireError("a control message is an object with a 'type'")
            yield message

    def _line(self) -> bytes:
        """The next line; nothing once the connection is closed, from whichever side."""
        try:
            return self._reader.readline(self.most_bytes)
        except ValueError:  # closed here meanwhile
            return b""

    def shut(self) -> None:
        """End both directions; whoever reads sees the end, and closes it."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close both directions."""
        self.shut()
        self._reader.close()  # it holds the descriptor; whoever reads has been woken
        self.socket.close()


SILENCE_S = 6.0
PREPARING_S = 60.0
"""A node that has not been told to start may be silent for so long: while it loads a library, none
of its threads may speak, and on a slow machine several nodes load at once. That its process ended
is heard of all the same."""
HEARTBEAT_S = 1.0
UNREAD_S = 60.0
"""A node may leave what it is sent unread for so long, when the kernel has no room for more, and
the session what a node sends: as long as a node may prepare."""
MOST_WAITING, MOST_WAITING_BYTES = 50_000, 64 << 20
"""Messages that may wait to be received, and bytes of their lines. Beyond them nodes are read no
further until some have been: their own sends block."""
_LOOK_S, _PAUSE_S = 0.5, 0.01
"""Between two looks for strangers that say nothing; after somebody could not be let in."""

Inbound = tuple[str, dict[str, Any]]
_Waiting = tuple[str, dict[str, Any], int]
"""The same with the bytes of its line."""


class ControlServer:
    """Accepts the nodes called ``names`` on ``address``; ``token`` is what a node must show.

    ``addresses``: where nodes connect from, by name, as far as that is known. ``netns``: the
    namespace to listen in.
    """

    def __init__(
        self,
        address: str,
        port: int,
        token: str,
        names: Iterable[str],
        addresses: Mapping[str, str] | None = None,
        netns: str | None = None,
    ) -> None:
        self.strangers = 0
        """Connections closed because whoever connected was no node, or said nothing."""
        self.disconnected: set[str] = set()
        """Nodes whose connections have ended unexpectedly: their processes have, or soon will."""
        self._token, self._names, self._addresses = token, frozenset(names), addresses or {}
        self._counting = threading.Lock()
        with inside(netns):
            self._listener = socket.create_server((address, port), backlog=256)
        self._listener.settimeout(_LOOK_S)
        self._pending: PendingConnections[JsonLines] = PendingConnections()
        self._nodes: dict[str, JsonLines] = {}
        self._last_heard_s: dict[str, float] = {}
        self._paused: set[str] = set()
        self._started: set[str] = set()
        self._inbox: queue.SimpleQueue[_Waiting] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._closing, self._ended = False, threading.Event()
        self._looked = 0.0
        _event_models()  # it takes 50 ms, which nobody has later
        threading.Thread(target=self._accept, daemon=True).start()

    def send(self, node: str, kind: str, **fields: Any) -> None:
        """Send to one node. Raises NodeLost when it is gone, or has not read for ``UNREAD_S``."""
        if kind == "start":
            self._started.add(node)
        try:
            self._nodes[node].send(kind, **fields)
        except TimeoutError as error:
            raise NodeLost(node, None, str(error)) from error
        except (OSError, KeyError) as error:
            raise NodeLost(node, None, "its control connection is closed") from error

    def receive(self, timeout_s: float) -> Inbound | None:
        """The next message as (node, message); None after ``timeout_s``.

        Raises NodeLost for a node that has gone or fallen silent; its step is for the caller to
        fill in.
        """
        if time.monotonic() - self._looked > HEARTBEAT_S:
            self._check_silence()  # also while others have much to say
        try:
            node, message, size = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            self._check_silence()
            return None
        with self._counting:
            self._waiting_bytes -= size
        if message["type"] == "lost":
            raise NodeLost(node, None, str(message["reason"]))
        return node, message

    def post(self, node: str, message: dict[str, Any]) -> None:
        """Put in a message as if ``node`` had sent it."""
        self._put(node, message)

    def pause_liveness(self, node: str) -> None:
        """A paused node is silent, and not lost."""
        self._paused.add(node)

    def resume_liveness(self, node: str) -> None:
        """It goes on: from now on it must be heard of again."""
        self._last_heard_s[node] = time.monotonic()
        self._paused.discard(node)

    def expect_exit(self, node: str) -> None:
        """A node is about to be killed: its end is no loss, and it may come back."""
        self._last_heard_s.pop(node, None)
        self._paused.discard(node)
        self._started.discard(node)
        self._nodes.pop(node, None)
        self.disconnected.discard(node)

    def connected(self) -> list[str]:
        """Names of the nodes that have said hello."""
        return sorted(self._nodes)

    def close(self) -> None:
        """Close the listener and every connection: nodes end when they see it."""
        self._closing = True
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for stranger in self._pending.all():
            stranger.shut()
        for lines in list(self._nodes.values()):
            lines.close()

    def _check_silence(self) -> None:
        now = self._looked = time.monotonic()
        for node, heard in list(self._last_heard_s.items()):
            most_s = SILENCE_S if node in self._started else PREPARING_S
            if now - heard > most_s and node not in self._paused:
                raise NodeLost(node, None, f"it gave no sign of life for {now - heard:.1f} s")

    def _accept(self) -> None:
        while not self._closing:
            for silent in self._pending.expired(time.monotonic()):
                silent.shut()
            try:
                accepted, (address, *_) = self._listener.accept()
                self._let_in(accepted, address)
            except TimeoutError:
                continue
            except (
                OSError,
                RuntimeError,
            ):  # the end, somebody who is gone again, or too many of them
                self._ended.wait(_PAUSE_S)

    def _let_in(self, accepted: socket.socket, address: str) -> None:
        """Raises OSError or RuntimeError where there is no socket or thread for it."""
        try:
            lines = JsonLines(accepted, GREETING_BYTES, UNREAD_S)
        except Exception:
            accepted.close()
            raise
        if (out := self._pending.add(lines, address, time.monotonic())) is not None:
            out.shut()
        try:
            threading.Thread(target=self._listen, args=(lines, address), daemon=True).start()
        except RuntimeError:
            self._pending.remove(lines)
            lines.close()
            raise

    def _listen(self, lines: JsonLines, address: str) -> None:
        node, reason = None, "its process ended"
        try:
            for message in lines:
                if node is None:
                    node = self._admit(lines, message, address)
                    continue
                if self._nodes.get(node) is not lines:
                    # dismissed: it is killed in a moment, and must not end by itself before
                    continue
                self._last_heard_s[node] = time.monotonic()
                check_said(message)
                if message["type"] != "alive":
                    self._wait_for_room(node)
                    self._put(node, message, lines.line_bytes)
        except (OSError, WireError) as error:
            reason = str(error)
        self._pending.remove(lines)
        if node is None and not self._closing:
            with self._counting:
                self.strangers += 1
        if node is not None and self._nodes.get(node) is lines and not self._closing:
            self.disconnected.add(node)
            self._put(node, {"type": "lost", "reason": reason})
        lines.close()

    def _wait_for_room(self, node: str) -> None:
        """A node is no less alive while it is not read."""
        while self._is_full() and not self._ended.wait(_PAUSE_S):
            self._last_heard_s[node] = time.monotonic()

    def _is_full(self) -> bool:
        return self._inbox.qsize() >= MOST_WAITING or self._waiting_bytes >= MOST_WAITING_BYTES

    def _put(self, node: str, message: dict[str, Any], size: int = 0) -> None:
        with self._counting:
            self._waiting_bytes += size
        self._inbox.put((node, message, size))

    def _admit(self, lines: JsonLines, hello: dict[str, Any], address: str) -> str:
        """Raises WireError for a wrong token, or an address that is not the node's."""
        name, token = hello.get("node"), str(hello.get("token")).encode(errors="replace")
        if hello["type"] != "hello" or not hmac.compare_digest(token, self._token.encode()):
            raise WireError("a stranger on the control network")
        if not isinstance(name, str) or name not in self._names or name in self._nodes:
            raise WireError(f"node {name!r} is not expected, or here already")
        if address != self._addresses.get(name, address):
            raise WireError(f"{address} is not the address of node {name!r}")
        self._pending.remove(lines)
        lines.most_bytes = MAX_LINE
        self._nodes[name] = lines
        self._last_heard_s[name] = time.monotonic()
        self._put(name, hello)
        return name
