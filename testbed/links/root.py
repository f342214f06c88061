"""A device's root queueing discipline: whose it is, room for ours, and the way in for what arrives."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

from testbed.errors import LinkError
from testbed.links import htb, ingress
from testbed.links.channel import Channel, KernelRefused
from testbed.links.plan import LINE_HANDLE
from testbed.scenario.shape import End

DEFAULT_ROOTS = {"noqueue", "pfifo_fast", "fq_codel", "mq"}
"""Roots that the kernel puts there by itself; any other with a handle is somebody's."""

_OURS = {("htb", htb.ROOT_HANDLE), ("netem", LINE_HANDLE)}
_GONE = {errno.ENODEV, errno.ENOENT, errno.EINVAL, errno.EBADF}


@dataclass(frozen=True, slots=True)
class Where:
    """The device whose egress is used; ``redirect``: the device whose arrivals go through it."""

    netns: str | None
    index: int
    name: str
    redirect: int | None = None


class Rooted:
    """What is the root of a device. Holds a socket in the device's namespace for as long as it lives."""

    def __init__(self, end: End, where: Where) -> None:
        self.end, self.where = end, where
        self.installed = False
        self._led_in = False
        self._channel = Channel(where.netns)

    def remove(self) -> None:
        """Take away what was installed and close; what has vanished with its device is no error."""
        try:
            # The redirect first: what arrives must not be sent to a device that has no queue any more.
            if self.where.redirect is not None and self._led_in:
                self._unless_gone(
                    lambda: ingress.undo_redirect(self._channel, self.where.redirect or 0)
                )
            if self.installed:
                self._unless_gone(lambda: self.send(self._deletion()))
        finally:
            self.installed = self._led_in = False
            self._channel.close()

    @staticmethod
    def _unless_gone(action: Callable[[], object]) -> None:
        try:
            action()
        except KernelRefused as error:
            if error.errno not in _GONE:
                raise

    def send(self, *messages: bytes) -> None:
        """Have prepared messages carried out. Raises KernelRefused."""
        self._channel.send(*messages)

    def _deletion(self) -> bytes:
        """The message that removes it."""
        raise NotImplementedError

    def _make_room(self) -> None:
        """Remove a root of ours that an earlier run left. Raises LinkError for one that is not ours."""
        root = self._root()
        if root is None:
            return
        if (root.kind, root.handle) in _OURS:
            self.send(htb.delete_root(self.where.index, root.handle))
        elif root.handle and root.kind not in DEFAULT_ROOTS:
            raise self._mismatch(
                "a device without a queueing discipline of somebody else's",
                f"{root.kind} {root.handle >> 16:x}: on {self.where.name!r}",
            )

    def _lead_in(self) -> None:
        """Have arrivals go through this device, where they are to. Raises KernelRefused and LinkError."""
        source = self.where.redirect
        if source is None:
            return
        try:
            ingress.redirect(self._channel, source, self.where.index)
        except KernelRefused as error:
            if error.errno != errno.EEXIST:
                raise
        to = [redirect.target for redirect in ingress.passed(self._channel, source)]
        if to != [self.where.index]:
            raise self._mismatch(
                f"what arrives at device {source} redirected to {self.where.name!r}",
                f"redirects to devices {to}" if to else "somebody else's discipline for arrivals",
            )
        self._led_in = True

    def _qdiscs(self) -> list[htb.Qdisc]:
        return htb.qdiscs(self._channel, self.where.index)

    def _root(self) -> htb.Qdisc | None:
        return next((qdisc for qdisc in self._qdiscs() if qdisc.parent == htb.AT_ROOT), None)

    def _mismatch(self, asked: str, held: str) -> LinkError:
        return LinkError(self.end.link, self.end.direction, asked=asked, held=held)
