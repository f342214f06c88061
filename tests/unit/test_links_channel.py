"""What a kernel's answers say went wrong, on answers made by hand."""

from __future__ import annotations

import errno
import socket
import struct
from collections import OrderedDict
from collections.abc import Iterator

import pytest
from pyroute2.netlink import NLM_F_DUMP_INTR, NLM_F_MULTI, NLMSG_DONE, NLMSG_ERROR
from pyroute2.netlink.rtnl import RTM_GETLINK, RTM_NEWLINK
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from testbed.links.tc import netlink
from testbed.links.tc.netlink import _TIMEOUT, KernelRefused, NetlinkChannel, NetlinkMessage, _check


def answer(kind: int, payload: bytes, flags: int = 0) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, flags, 1, 0) + payload


@pytest.mark.parametrize("payload", [b"", bytes(4), struct.pack("=i", 7)])
def test_a_list_that_ends_well(payload: bytes) -> None:
    _check(answer(NLMSG_DONE, payload))


def test_a_list_that_ends_early_says_why() -> None:
    with pytest.raises(KernelRefused) as caught:
        _check(answer(NLMSG_DONE, struct.pack("=i", -errno.EMSGSIZE)))
    assert caught.value.errno == errno.EMSGSIZE
    assert caught.value.strerror == "Message too long"


def test_a_refusal_says_why_and_an_acknowledgement_nothing() -> None:
    request = struct.pack("=IHHII", 16, 36, 5, 1, 0)
    _check(answer(NLMSG_ERROR, bytes(4) + request))
    with pytest.raises(KernelRefused) as caught:
        _check(answer(NLMSG_ERROR, struct.pack("=i", -errno.ENOENT) + request))
    assert caught.value.errno == errno.ENOENT


def test_the_oldest_structure_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that comes again is encoded as before."""
    monkeypatch.setattr(netlink, "_MOST", 3)
    monkeypatch.setattr(netlink, "_templates", OrderedDict())

    def named(name: str) -> bytes:
        message = NetlinkMessage(ifinfmsg, netlink.tree(("IFLA_IFNAME", name), index=7))
        return netlink.encode(message, RTM_GETLINK, 0)

    first = named("one")
    for name in ("two", "three", "four"):
        named(name)
    kept = [constants[0][1] for _, constants in netlink._templates]
    assert kept == ["two", "three", "four"]
    assert named("one") == first


OBJECTS = [b"one.", b"two."]


@pytest.fixture
def spoken_to() -> Iterator[tuple[NetlinkChannel, socket.socket]]:
    """A channel, and the kernel's side of it in a test's hands."""
    channel = NetlinkChannel()
    channel.close()
    channel._socket, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kernel.settimeout(10.0)
    yield channel, kernel
    channel.close()
    kernel.close()


def listing(kernel: socket.socket, *interrupted: bool) -> None:
    """Answer a request for every one of ``interrupted``: with a list that changed meanwhile, where it says so."""
    for changed in interrupted:
        flags = NLM_F_MULTI | (NLM_F_DUMP_INTR if changed else 0)
        objects = OBJECTS[:1] if changed else OBJECTS
        for payload in objects:
            kernel.send(answer(RTM_NEWLINK, payload, NLM_F_MULTI))
        kernel.send(answer(NLMSG_DONE, bytes(4), flags))


def test_a_list_that_changed_while_it_was_read_is_asked_for_again(
    spoken_to: tuple[NetlinkChannel, socket.socket],
) -> None:
    channel, kernel = spoken_to
    listing(kernel, True, True, False)
    messages = channel.dump_raw(NetlinkMessage(ifinfmsg, {}), RTM_GETLINK)
    assert messages == [answer(RTM_NEWLINK, payload, NLM_F_MULTI) for payload in OBJECTS]
    asked = {kernel.recv(4096) for _ in range(3)}
    assert len(asked) == 1, "the same question, three times"


def test_a_kernel_that_does_not_answer_is_not_waited_for_without_end(
    spoken_to: tuple[NetlinkChannel, socket.socket],
) -> None:
    channel, _ = spoken_to
    with NetlinkChannel() as real:
        size = len(_TIMEOUT)
        limit = real._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, size)
        assert limit == _TIMEOUT
    channel._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 1000))
    with pytest.raises(KernelRefused, match="has not answered") as caught:
        channel.ask(b"question")
    assert caught.value.errno == errno.ETIMEDOUT


def test_what_cannot_be_read_is_refused_and_not_half_read(
    spoken_to: tuple[NetlinkChannel, socket.socket],
) -> None:
    """An object of 4 bytes is no interface; and of an answer beyond the buffer the end is missing."""
    channel, kernel = spoken_to
    kernel.send(answer(RTM_NEWLINK, b"one."))
    with pytest.raises(KernelRefused, match="no ifinfmsg") as caught:
        channel.get(NetlinkMessage(ifinfmsg, {}), RTM_GETLINK)
    assert caught.value.errno == errno.EBADMSG
    whole = answer(RTM_NEWLINK, bytes(16))
    cut = whole + struct.pack("=HH", 100, 3)  # an attribute that is longer than what is left
    kernel.send(cut)
    assert channel.get(NetlinkMessage(ifinfmsg, {}), RTM_GETLINK)["index"] == 0
    kernel.send(answer(RTM_NEWLINK, bytes(1 << 16)))
    with pytest.raises(KernelRefused, match="65552 bytes was cut off"):
        channel.ask(b"question")


@pytest.mark.parametrize("unread", [1, 2, 7])
def test_what_was_left_unread_answers_no_later_question(
    spoken_to: tuple[NetlinkChannel, socket.socket], unread: int
) -> None:
    """A list that whoever asked did not read to its end; and what was read leaves nothing to throw away."""
    channel, kernel = spoken_to
    channel._send(b"given up")
    for _ in range(unread):
        kernel.send(answer(RTM_NEWLINK, b"old."))
    assert kernel.recv(4096) == b"given up"
    answers = [answer(RTM_NEWLINK, payload) for payload in OBJECTS]
    channel._send(b"first")
    kernel.send(answers[0])
    assert channel._receive() == answers[0]
    channel._unanswered = False
    kernel.send(answers[1])
    assert channel.ask(b"second") == answers[1]


def test_a_list_that_never_stands_still_is_refused(
    spoken_to: tuple[NetlinkChannel, socket.socket],
) -> None:
    channel, kernel = spoken_to
    listing(kernel, *[True] * 5)
    with pytest.raises(KernelRefused, match="changed at every attempt"):
        channel.dump_raw(NetlinkMessage(ifinfmsg, {}), RTM_GETLINK)
