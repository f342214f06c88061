"""Hostile input for fuzz tests: valid bytes and valid JSON to which a few bad things happened.

``NARROWS_FUZZ=10000`` in the environment raises the number of examples of each test.
"""

from __future__ import annotations

import json
import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

DAILY = 100
EXAMPLES = int(os.environ.get("NARROWS_FUZZ", DAILY))
TIMEOUT_S = max(300, EXAMPLES // 4)
fuzzed: Callable[[Any], Any] = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck)
)


class Raw(str):
    """Text that stands in JSON as it is."""


ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**70), 10**400, 0.5, -0.0, 5e-324, 1e15, 1e308,
    float("nan"), float("inf"), -float("inf"), "", " ", "x", "x" * 5000, "\ud800", "\0", "\x1b[31m", "\n", "[/]",
    "<script>", "../../..", "/", "server", "worker-0", "worker-99", "step", "valid", "nan", "1e999", [], {}, [[]],
    [None], {"": None}, [1, "x", {}], Raw("9" * 5000), Raw("[" * 300 + "]" * 300), Raw("[" * 5000 + "]" * 5000),
    Raw('{"a":' * 300 + "1" + "}" * 300), Raw("1e99999"), Raw('"\\ud800\\ud800"'), Raw("tru"),
]  # fmt: skip
"""What no field expects; some of it is no JSON."""
PIECES = [
    b"", b"\n", b"\r\n", b"\0", b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80",
    b"NaN", b"-Infinity", b"1e999", b"9" * 400, b"9" * 5000, b"[" * 2000, b'{"a":' * 2000, b"#", b"=", b"x" * 3000,
]  # fmt: skip


@st.composite
def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """Bits flipped, pieces cut, repeated, put in or moved."""
    made = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(made)))
        match draw(st.sampled_from(["flip", "insert", "remove", "cut", "repeat", "move"])):
            case "flip" if at < len(made):
                made[at] ^= 1 << draw(st.integers(0, 7))
            case "insert":
                made[at:at] = draw(st.sampled_from(PIECES) | st.binary(max_size=9))
            case "remove":
                del made[at : at + draw(st.integers(1, 40))]
            case "cut":
                del made[at:]
            case "repeat":
                made[at:at] = made[max(0, at - 40) : at] * draw(st.integers(1, 20))
            case "move":
                made = made[at:] + made[:at]
    return bytes(made)


@st.composite
def altered(draw: st.DrawFn, value: Any) -> Any:
    """A copy of a JSON value in which a few fields are something else, gone, or there too often."""
    made = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(made))
        if not places:
            return deepcopy(ODD[draw(st.integers(0, len(ODD) - 1))])
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        match draw(st.sampled_from(["odd", "odd", "gone", "more", "near"])):
            case "gone":
                del holder[key]
            case "more" if isinstance(holder, list):
                holder.extend(holder[key : key + 1] * draw(st.integers(1, 50)))
            case "near" if isinstance(holder[key], int | float) and abs(holder[key]) < 1e300:
                holder[key] *= draw(st.sampled_from([-1, 0, 0.5, 10, 1e6, 1e12, 1e18]))
            case _:
                holder[key] = deepcopy(ODD[draw(st.integers(0, len(ODD) - 1))])
    return made


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a value in a list or an object, as (holder, key)."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(entries):
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


def written(value: Any) -> bytes:
    """JSON, but for what is ``Raw``."""
    if isinstance(value, Raw):
        return str(value).encode()
    if isinstance(value, dict):
        pairs = (json.dumps(key).encode() + b":" + written(item) for key, item in value.items())
        return b"{" + b",".join(pairs) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(written, value)) + b"]"
    return json.dumps(value).encode()


def hostile(valid: list[Any]) -> st.SearchStrategy[bytes]:
    """Lines without their ends: of the objects in ``valid``, altered, or their bytes changed; and any bytes."""
    objects = st.sampled_from(valid)
    return st.one_of(
        objects.flatmap(altered).map(written),
        objects.map(written).flatmap(changed),
        st.binary(max_size=60),
        objects.map(written),
    )


@contextmanager
def memory_within(most_bytes: int) -> Iterator[None]:
    """What Python allocates meanwhile is never more than so much at once."""
    tracemalloc.start()
    try:
        yield
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes <= most_bytes, f"{peak_bytes:,} B of {most_bytes:,} B"


@contextmanager
def no_thread_fails() -> Iterator[None]:
    """Nothing that a thread raises is lost: it fails here."""
    failed: list[BaseException] = []
    before, threading.excepthook = (
        threading.excepthook,
        lambda args: failed.append(args.exc_value or args.exc_type()),
    )
    try:
        yield
    finally:
        threading.excepthook = before
    assert not failed, repr(failed[0])
