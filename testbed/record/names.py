"""Names of the Prometheus metrics. Dashboards and other people's queries rest on them: they do not change.

Base units, ``_total`` on counters, bytes even for rates. Every metric bears the labels ``LABELS``.
"""

from __future__ import annotations

LABELS = ("run", "scenario", "algorithm", "role", "node")
"""Bounded: an exporter holds one run at a time, and a node has one name and role."""

PHASE = "testbed_phase_seconds"
"""Histogram of a step's phases; label ``phase``."""

DELAY = "testbed_communication_delay_seconds"
"""Histogram: start of sending the compressed gradient to holding the aggregate."""

BYTES = "testbed_frame_bytes_total"
"""Frame bytes, headers included; label ``direction``: ``up`` away from a worker, ``down`` to it."""

STEPS = "testbed_steps_total"
"""Steps finished."""

DENSITY = "testbed_density_ratio"
"""Density requested for the latest step: k."""

ACCURACY = "testbed_accuracy_ratio"
"""Latest accuracy; label ``data``: ``train`` (a worker's mini-batch) or ``test`` (the server's replica)."""

LINK_RATE = "testbed_link_rate_bytes_per_second"
"""Rate of the node's link; labels ``direction`` and ``source``: ``asked`` or ``delivered``."""

BUILD = "testbed_build_info"
"""Always 1; labels ``version`` and ``python``."""

METRICS = (PHASE, DELAY, BYTES, STEPS, DENSITY, ACCURACY, LINK_RATE, BUILD)

BUCKETS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
)  # fmt: skip
"""Upper bounds of all histograms in seconds: 1 ms to 100 s, three to a decade."""
