"""A node's process: ``python -m testbed.bench.exchange.node``; tasks and answers are lines of JSON.

Told a task, it connects; told ``warm``, it makes a few rounds and says how long one took; told ``go N``, it makes N and says
how long each took, and the processor's time; told ``count``, what its interface has carried meanwhile.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from testbed.bench.exchange.part import Part, Task
from testbed.bench.exchange.table import entry
from testbed.session.garbage import seldom_collected

_DEVICES = Path("/proc/self/net/dev")
_RECEIVED, _SENT = 0, 8


def main() -> None:
    """Until nobody tells it anything any more."""
    while line := sys.stdin.readline():
        try:
            _carry_out(Task.from_json(json.loads(line)))
        except Exception as error:  # whoever measures decides
            sys.stderr.write(traceback.format_exc())
            _say(error=f"{type(error).__name__}: {error}")


def _carry_out(task: Task) -> None:
    part = entry(task.exchange).part(task)
    try:
        _say(connected=True)
        _told("warm")
        began = time.monotonic()
        _rounds(part, range(1, task.warm_up + 1))
        _say(round_s=(time.monotonic() - began) / task.warm_up)
        count = int(_told("go"))
        before, busy_s = carried(task.device), time.process_time()
        with seldom_collected():
            seconds = _rounds(part, range(task.warm_up + 1, task.warm_up + count + 1))
        _say(seconds=seconds, cpu_s=time.process_time() - busy_s)
        _told("count")
        received, sent = (now - was for now, was in zip(carried(task.device), before, strict=True))
        _say(received=received, sent=sent)
    finally:
        part.close()
    _say(closed=True)


def _rounds(part: Part, steps: range) -> list[float]:
    """How long each took, s."""
    seconds, before = [], time.monotonic_ns()
    for step in steps:
        part.round(step)
        now = time.monotonic_ns()
        seconds.append((now - before) / 1e9)
        before = now
    return seconds


def carried(device: str) -> tuple[int, int]:
    """Bytes that a device of this namespace has received and sent."""
    for line in _DEVICES.read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == device:
            fields = [int(field) for field in counters.split()]
            return fields[_RECEIVED], fields[_SENT]
    raise LookupError(f"there is no device {device!r} here")


def _told(word: str) -> str:
    """What follows ``word``, which is due. Raises ValueError for another, EOFError when nobody is there."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError("nobody says anything any more")
    said, _, rest = line.strip().partition(" ")
    if said != word:
        raise ValueError(f"{word!r} was due, and {line!r} came")
    return rest


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
