"""The messages between the agent and its client over a pipe: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cache
from typing import IO, Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from testbed.errors import ExperimentError, InputError, LinkError, MachineError, WireError
from testbed.scenario.link_state import LinkChange, LinkDirection, LinkState
from testbed.topology import Interface

At = Literal["nic", "network"]
Object = dict[str, Any]
Place = tuple[str, Interface, Interface]
"""The address of a device's link layer, the device, and its port at the overlay's bridge."""
T = TypeVar("T")
MOST_CHARACTERS = 256 << 20
"""Most characters of a line: hundreds of thousands of connections that were watched."""
_ERRORS: dict[type[Exception], tuple[str, ...]] = {
    LinkError: ("link", "direction", "requested", "actual"),
    MachineError: ("message", "fix"),
    InputError: ("message", "where", "hint"),
}
"""Errors that keep their kind, and the fields that they are made from."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """The settings of all links of a run.

    ``segments``: frames per offload bundle on every node's interface. ``at``: by node, where ``up``
    is shaped; ``nic`` where nothing is said. None leaves TCP's congestion control or least
    retransmission time-out to the host's default. ``ecn``: TCP asks for explicit congestion
    notification, without which a line has nothing that it could mark. ``gapped``: traffic may pause
    more shortly than looks are apart, so that a queue seen at two looks does not say that one stood
    in between.
    """

    segments: int
    at: dict[str, At] = field(default_factory=dict)
    congestion: str | None = None
    rto_min_ms: int | None = None
    ecn: bool = False
    gapped: bool = False


@dataclass(frozen=True, slots=True)
class InterfaceSeen:
    """One interface; totals since it was made, headers counted."""

    index: int
    name: str
    loopback: bool
    addresses: tuple[str, ...]
    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int

    def since(self, before: InterfaceSeen) -> InterfaceSeen:
        """The same, counted from ``before`` on."""
        return replace(
            self,
            sent_bytes=self.sent_bytes - before.sent_bytes,
            sent_packets=self.sent_packets - before.sent_packets,
            received_bytes=self.received_bytes - before.received_bytes,
            received_packets=self.received_packets - before.received_packets,
        )


@dataclass(frozen=True, slots=True)
class SocketSeen:
    """One connection. ``cookie`` names a socket for as long as the machine runs; ``own`` and
    ``peer``: ``address:port``, ``[address]:port`` where the address is IPv6. ``ended_ns``: of the
    monotonic clock. The kernel counts the peer's end as one of ``bytes_received``."""

    cookie: int
    own: str
    peer: str
    bytes_sent: int
    bytes_received: int
    segments_out: int
    retransmitted: int
    bytes_retransmitted: int
    least_rtt_us: int | None
    ended_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """The connections of a node's namespace, and its interfaces' counters at the end."""

    sockets: tuple[SocketSeen, ...]
    interfaces: tuple[InterfaceSeen, ...]
    missed: str | None

    def earlier(self, by_ns: int) -> Watched:
        """The same by a clock that is ``by_ns`` behind."""
        moved = (
            each if each.ended_ns is None else replace(each, ended_ns=each.ended_ns - by_ns)
            for each in self.sockets
        )
        return replace(self, sockets=tuple(moved))


def dump(message: Any) -> str:
    """A line without its end. Dataclasses become objects, sets lists."""
    return json.dumps(message, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) else sorted(value)  # type: ignore[arg-type]


def lines_of(pipe: IO[str], most: int = MOST_CHARACTERS) -> Iterator[str]:
    """Lines as they come. Raises WireError for a line of more than ``most`` characters."""
    while line := pipe.readline(most):
        if len(line) >= most and not line.endswith("\n"):
            raise WireError(f"a line of more than {most} characters between links agent and client")
        yield line


def read(kind: type[T], given: Any) -> T:
    """A value of a type out of what ``dump`` made of it: of dataclasses, and of collections of
    them.

    Raises WireError where it lacks a field, or has another form.
    """
    try:
        value: T = _adapter(kind).validate_python(given)  # type: ignore[arg-type]
    except ValidationError as error:
        name = getattr(kind, "__name__", str(kind))
        raise WireError(f"no {name} between links agent and client: {error!s:.200}") from error
    return value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def change_to_json(change: LinkChange) -> list[Any]:
    """A list, since there are many: time, link, direction, and the shape's own list."""
    return [change.time_s, *change.end, *change.shape.to_json()]


def change_from_json(fields: list[Any]) -> LinkChange:
    """Read what ``change_to_json`` wrote."""
    time_s, link, direction, *shape = fields
    return LinkChange(time_s, LinkDirection(link, direction), LinkState.from_json(shape))


def error_to_json(error: BaseException) -> Object:
    """An error by its kind and the fields it is made from."""
    for kind, names in _ERRORS.items():
        if isinstance(error, kind):
            return {"kind": kind.__name__, **{name: getattr(error, name) for name in names}}
    # the words of a KeyError are nothing but the key
    named = f"{type(error).__name__}: " if isinstance(error, LookupError) else ""
    return {"kind": "ExperimentError", "message": f"{named}{error}" or type(error).__name__}


def error_from_json(given: Object) -> Exception:
    """The error that ``error_to_json`` was given, or an ExperimentError of the same words."""
    kinds: dict[str, Any] = {kind.__name__: kind for kind in _ERRORS}
    fields = {name: value for name, value in given.items() if name != "kind"}
    if given["kind"] not in kinds:
        return ExperimentError(str(fields["message"]))
    error: Exception = kinds[given["kind"]](**fields)
    return error
