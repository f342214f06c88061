"""What a kernel's answers say went wrong, on answers made by hand."""

from __future__ import annotations

import errno
import struct

import pytest
from pyroute2.netlink import NLMSG_DONE, NLMSG_ERROR

from testbed.links.tc.netlink import KernelRefused, _check


def answer(kind: int, payload: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, 0, 1, 0) + payload


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
