"""One measurement of one alternative: install, load, follow a history, look."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from testbed.bench import figures
from testbed.bench.alternatives import Alternative
from testbed.bench.figures import Mark, Step
from testbed.bench.flows import bulk, busy, lead_s
from testbed.bench.lab import Lab
from testbed.bench.observer import Observer


@dataclass(frozen=True, slots=True)
class Measured:
    """``marks`` is empty where nothing on the way counts; ``says`` is the alternative's word on itself."""

    history: Sequence[Step]
    seconds: float
    marks: list[Mark]
    wire_bits: float | None
    """bit/s by the payload that the receiver got."""
    cpu_s: float
    says: dict[str, Any]
    t0_ns: int

    @property
    def ratio(self) -> float | None:
        """Delivered over asked at the link's own counter."""
        return figures.ratio(self.history, self.marks) if self.marks else None

    @property
    def cpu_per_gb(self) -> float | None:
        """Processor seconds of the whole host per 10⁹ bytes carried."""
        if self.marks:
            carried = float(self.marks[-1][1] - self.marks[0][1])
        else:
            carried = (self.wire_bits or 0.0) / 8 * self.seconds
        return figures.times(self.cpu_s, carried / 1e9)


def measure(
    lab: Lab,
    alternative: Alternative,
    history: Sequence[Step],
    seconds: float,
    *,
    every_s: float = 0.1,
    loops: int = 0,
) -> Measured:
    """Load the alternative's link with one TCP flow for ``seconds`` from t0 on, the host with ``loops``.

    Raises ExperimentError where it cannot be set up or the flow breaks.
    """
    question = alternative.install(lab, history)
    try:
        with (
            bulk(lab, [alternative.node], seconds) as (flow,),
            busy(loops, lead_s(1) + seconds + 1),
        ):
            t0_ns = time.monotonic_ns() + int(lead_s(1) * 1e9)
            stop_ns = t0_ns + int(seconds * 1e9)
            observer = Observer(lab.netns(alternative.node), question, t0_ns, stop_ns, every_s)
            observer.start()
            alternative.start(t0_ns)
            marks = observer.result()
            says = alternative.stop()
            wire_bits = flow.wire_bits()
    finally:
        alternative.remove()
    return Measured(history, seconds, marks, wire_bits, observer.cpu_s, says, t0_ns)
