"""What crosses the pipe between the agent and its client: one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from testbed.errors import ExperimentError, InputError, LinkError, MachineError
from testbed.fabric.base import Cable, Interface
from testbed.scenario.shape import End, LinkChange, Shape

At = Literal["nic", "network"]
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What holds for all links of a run.

    ``segments``: frames per offload bundle on every node's interface. ``at``: by node, where ``up`` is
    shaped; ``nic`` where nothing is said. None leaves TCP's congestion control or least retransmission
    time-out to the host's default. ``ecn``: TCP asks for explicit congestion notification, without which
    a line has nothing that it could mark. ``gapped``: traffic may pause more shortly than looks are apart, so
    that a queue seen at two looks does not say that one stood in between.
    """

    segments: int
    at: dict[str, At] = field(default_factory=dict)
    congestion: str | None = None
    rto_min_ms: int | None = None
    ecn: bool = False
    gapped: bool = False


def dump(message: Object) -> str:
    """A line without its end."""
    return json.dumps(message, separators=(",", ":"))


def end_from_json(text: str) -> End:
    """Read ``worker-0 up``."""
    link, _, direction = text.rpartition(" ")
    return End(link, "up" if direction == "up" else "down")


def change_to_json(change: LinkChange) -> list[Any]:
    """A list, since there are many: time, link, direction, and the shape's own list."""
    return [change.time_s, *change.end, *change.shape.to_json()]


def change_from_json(fields: list[Any]) -> LinkChange:
    """Read what ``change_to_json`` wrote."""
    time_s, link, direction, *shape = fields
    return LinkChange(time_s, End(link, direction), Shape.from_json(shape))


def cable_to_json(cable: Cable) -> Object:
    """Both ends of a cable."""
    return asdict(cable)


def cable_from_json(given: Object) -> Cable:
    """Read what ``cable_to_json`` wrote."""
    return Cable(Interface(**given["nic"]), Interface(**given["port"]))


def error_to_json(error: BaseException) -> Object:
    """An error by its kind and the fields it is made from."""
    if isinstance(error, LinkError):
        fields = {"link": error.link, "direction": error.direction}
        return {"kind": "LinkError", **fields, "asked": error.asked, "held": error.held}
    if isinstance(error, MachineError):
        return {"kind": "MachineError", "message": error.message, "fix": error.fix}
    if isinstance(error, InputError):
        fields = {"message": error.message, "where": error.where}  # type: ignore[dict-item]
        return {"kind": "InputError", **fields, "hint": error.hint}
    # the words of a KeyError are nothing but the key
    named = f"{type(error).__name__}: " if isinstance(error, LookupError) else ""
    return {"kind": "ExperimentError", "message": f"{named}{error}" or type(error).__name__}


def error_from_json(given: Object) -> Exception:
    """The error that ``error_to_json`` was given, or an ExperimentError of the same words."""
    fields = {name: value for name, value in given.items() if name != "kind"}
    if given["kind"] == "LinkError":
        return LinkError(fields.pop("link"), fields.pop("direction"), **fields)
    if given["kind"] == "MachineError":
        return MachineError(fields["message"], fix=fields["fix"])
    if given["kind"] == "InputError":
        return InputError(fields.pop("message"), **fields)
    return ExperimentError(fields["message"])
