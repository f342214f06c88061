"""Whether the counts and replicas that several nodes keep of one run agree. Each fault is a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from testbed.scenario.shape import SEGMENT_BYTES

_REFUSED = 0.005
"""Share of its bytes, in whole segments, that a node's own queue may have refused at first."""

Messages = Mapping[str, Mapping[str, Any]]
"""Every node's ``done`` message by its name: ``{"summary", "counters", "multicast", "strangers"}``."""
Records = Iterable[Mapping[str, Any]]


def faults(
    done: Messages,
    steps: Records,
    epochs: Records,
    recorded: Collection[str] | None = None,
    *,
    lost: bool = False,
) -> list[str]:
    """Everything that does not agree; nothing, in a sound run that came to its end.

    ``recorded``: the workers whose steps are recorded; None: all. ``lost``: a worker was lost, and what was
    under way between it and a server with it: the server's frames are not counted.
    """
    workers = [node for node, message in done.items() if message["summary"]["role"] == "worker"]
    return [
        *_replicas([*epochs, *(_final(node, message) for node, message in done.items())]),
        *_missing(done, steps, workers if recorded is None else recorded),
        *_bypassed(done),
        *_frames({node: said for node, said in done.items() if not (lost and _serves(said))}),
    ]


def _serves(message: Mapping[str, Any]) -> bool:
    return bool(message["summary"]["role"] == "server")


def _final(node: str, message: Mapping[str, Any]) -> dict[str, Any]:
    summary = message["summary"]
    return {"node": node, "step": summary["steps"], "parameters": summary["parameters"]}


def _replicas(hashed: Records) -> Iterator[str]:
    """A sentence for every step at whose end some nodes' parameters had another hash than others'."""
    hashes: dict[int, dict[str, set[str]]] = {}
    for record in hashed:
        if record["parameters"] is None:
            continue  # one of several servers: it has no replica
        nodes = hashes.setdefault(record["step"], {}).setdefault(record["parameters"], set())
        nodes.add(record["node"])
    for step, groups in sorted(hashes.items()):
        if len(groups) > 1:
            sides = " against ".join(", ".join(sorted(nodes)) for nodes in groups.values())
            yield f"after step {step} the replicas differed: {sides}"


def _missing(done: Messages, steps: Records, workers: Iterable[str]) -> Iterator[str]:
    recorded = Counter(step["node"] for step in steps)
    for node in workers:
        summary, kept = done[node]["summary"], recorded[node]
        made = summary.get("made", summary["steps"])
        if kept != made:
            yield f"{node} made {made} steps, but {kept} are in the records"


def _bypassed(done: Messages) -> Iterator[str]:
    """What a library moves is on the node's interface, at least: a sentence for each way in which it was not."""
    for node, message in done.items():
        if (seen := message.get("interface")) is None:
            continue
        for way, name in (("sent", "bytes_up"), ("received", "bytes_down")):
            least = message["summary"][name]
            if seen[way] < least:
                yield (
                    f"the interface {seen['interface']} of {node} {way} {seen[way]} B, but gradients alone are "
                    f"{least} B: they went another way"
                )


def _frames(done: Messages) -> Iterator[str]:
    """The application's own bytes are the frames it counted, HELLO and BYE among them, and those of its endpoint."""
    for node, message in done.items():
        sockets = message["counters"].values()
        sent = sum(s["bytes_sent"] - s["bytes_retransmitted"] for s in sockets)
        received = sum(s["bytes_received"] for s in sockets)
        if multicast := message.get("multicast"):
            sent += multicast["frame_bytes_sent"]
            received += multicast["frame_bytes_received"]
        counted = message["summary"]
        excuses_out, excuses_in = message.get("excuses", (0, 0))
        sent, received = sent - excuses_out, received - excuses_in
        # The kernel counts the end of a stream as a byte, and a peer may have ended its own already.
        ends = received - counted["bytes_received"]
        # What its own queue refuses the kernel counts as sent, and again when it goes (to the byte right: the peers' counts).
        again = sent - counted["bytes_sent"]
        alike = 0 <= again <= _REFUSED * counted["bytes_sent"] and again % SEGMENT_BYTES == 0
        if not alike or not 0 <= ends <= len(sockets):
            yield (
                f"{node} counted frames of {counted['bytes_sent']} B out and "
                f"{counted['bytes_received']} B in, its sockets {sent} B and {received} B"
            )
