"""Who reaches the sockets that a job's marks go to: the nodes' own user, and nobody else on the host."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from testbed.runner.exec.mark_listener import MarkListener

NODE, STRANGER = 61234, 61235
BROKEN = {"heard": (), "closed": ("BrokenPipeError", "ConnectionResetError")}
"""Errors of whoever writes to a socket that was closed meanwhile."""
SAID = b'{"what": "hello", "rank": 0, "local_rank": 0}\n{"what": "step", "ns": 5, "number": 1}\n'


@pytest.fixture
def listener() -> Iterator[Callable[..., MarkListener]]:
    made: list[MarkListener] = []

    def make(*arguments: object) -> MarkListener:
        made.append(MarkListener(["worker-0"], *arguments))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()
        assert not one.folder.exists()


def said_by(user: int, group: int, path: str) -> str:
    """What becomes of a mark that such a process sends: ``heard``, ``closed`` or why it could not be sent."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
            os.write(writing, _say(path).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def _say(path: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(10)
        try:
            one.connect(path)
            one.sendall(SAID)
            one.sendall(b'{"what": "begin", "ns": 6}\n')
            return "heard" if one.recv(100) else "closed"
        except OSError as error:
            return type(error).__name__


def test_another_user_cannot_connect(listener: Callable[..., MarkListener]) -> None:
    own = listener()
    own.release(1)
    assert said_by(NODE, NODE, own.path("worker-0")) == "PermissionError"
    assert own.folder.stat().st_mode & 0o077 == 0
    assert said_by(os.geteuid(), os.getegid(), own.path("worker-0")) == "heard"


def test_a_node_of_another_user_is_heard_and_nobody_else(
    listener: Callable[..., MarkListener],
) -> None:
    given = listener((NODE, NODE))
    given.release(1)
    assert said_by(NODE, NODE, given.path("worker-0")) == "heard"
    assert given.heard.get(timeout=60).mark.number == 1
    assert given.heard.get(timeout=60).mark.what == "begin"
    for user, group in ((STRANGER, STRANGER), (STRANGER, NODE)):
        assert said_by(user, group, given.path("worker-0")) == "PermissionError"
    assert given.heard.empty()
    assert given.folder.stat().st_uid == os.geteuid(), "the node could put others in its place"


def test_who_may_connect_and_is_not_that_user_is_not_listened_to(
    listener: Callable[..., MarkListener],
) -> None:
    """Root may open everything; and the user may open his own socket to all."""
    given = listener((NODE, NODE))
    given.release(1)
    assert said_by(0, 0, given.path("worker-0")) in ("closed", "BrokenPipeError", "ConnectionResetError")  # fmt: skip
    assert given.heard.empty()
    give_up = time.monotonic() + 60
    while given.strangers != 1:
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("user", "group", "said"), [(NODE, STRANGER, "heard"), (STRANGER, NODE, "closed")]
)
def test_a_process_is_known_by_its_user_not_by_its_group(
    listener: Callable[..., MarkListener], user: int, group: int, said: str
) -> None:
    """Where the socket is open to all, whoever may open it."""
    given = listener((NODE, NODE))
    given.release(1)
    given.folder.chmod(0o755)
    path = given.path("worker-0")
    os.chmod(path, 0o666)  # noqa: PTH101
    assert said_by(user, group, path) in (said, *BROKEN[said])
    assert given.heard.empty() is (said == "closed")
