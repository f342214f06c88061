"""Linux's TCP Small Queues: a host's own flows take turns at its uplink, each with little in that queue. Pure.

A flow has two bundles there, or what its pace is for 1/1024 s, if that is more; a bundle counts for 768 bytes more
than its payload (``tcp_small_queue_check`` in the kernel's tcp_output.c).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.fabric.sim.board import PACKET_BITS
from testbed.fabric.sim.shares import Floats, Indices
from testbed.scenario.shape import SEGMENT_BYTES

_BUNDLES, _FOR_S, _BUFFER_BYTES = 2, 1 / 1024, 768


def allowed_bits(pace: Floats, bundle: int) -> Floats:
    """What flows of ``pace`` (packets a second) may have in their hosts' queues, in bits on the wire."""
    counted = bundle * SEGMENT_BYTES + _BUFFER_BYTES
    bundles = np.ceil(_FOR_S * pace * SEGMENT_BYTES / counted)
    allowed: Floats = np.maximum(_BUNDLES, bundles) * bundle * PACKET_BITS
    return allowed


def weights(first: Indices, own: NDArray[np.bool_], window: Floats, allowed: Floats) -> Floats:
    """How flows share links: by their windows; those of one host by what each may have in its queue.

    ``first`` (flows,): the link that each passes first, ``own``: whether its host sees how full that is.
    """
    small = np.minimum(window, allowed)
    total, queued = np.bincount(first, window), np.bincount(first, small)
    weight: Floats = np.where(own, small * (total[first] / queued[first]), window)
    return weight
