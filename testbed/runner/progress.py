"""How many of a comparison's runs are over and how long the rest will take: on a terminal a live
panel with sparklines of rate, k and delay, elsewhere a plain line now and then.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from testbed.errors import printable


class Remaining:
    """Real seconds left for runs of ``algorithms`` (in order), ``processes`` at a time.

    ``in_process``: runs are in this process, where the first one alone loads what all need.
    """

    def __init__(
        self, algorithms: Sequence[str], processes: int = 1, *, in_process: bool = False
    ) -> None:
        self._algorithms, self._processes = algorithms, processes
        self._loading = in_process
        self.took_s: list[float | None] = [None] * len(algorithms)
        """Seconds that each run took, by index, without loading; None where not known."""
        self._over: set[int] = set()
        self._begun: float | None = None

    def begun(self, now: float) -> None:
        """A run begins, alone; ``now``: on the monotonic clock."""
        self._begun = now

    def first_step(self, now: float) -> None:
        """The run that goes on alone has made its first step; all before it was loading, if it is
        the first of this process."""
        if self._loading and self._begun is not None:
            self._loading, self._begun = False, now

    def over(self, index: int, took_s: float | None) -> None:
        """The run with that index has ended."""
        self._over.add(index)
        self.took_s[index], self._begun = took_s, None

    def elapsed_s(self, now: float) -> float | None:
        """Since the run that goes on alone began; None without one."""
        return None if self._begun is None else now - self._begun

    def left_s(self, now: float) -> float | None:
        """Return the time left: each algorithm's mean, or all runs' mean; None: no run is over."""
        known: dict[str, list[float]] = {}
        for name, took_s in zip(self._algorithms, self.took_s, strict=True):
            if took_s is not None:
                known.setdefault(name, []).append(took_s)
        if not known:
            return None
        other = fmean(took_s for several in known.values() for took_s in several)
        needed = [
            fmean(known.get(name, [other]))
            for index, name in enumerate(self._algorithms)
            if index not in self._over
        ]
        gone = min(self.elapsed_s(now) or 0.0, needed[0]) if needed else 0.0
        return (sum(needed) - gone) / max(1, min(self._processes, len(needed)))

    def words(self, now: float) -> str:
        """Such as ``3 of 10 runs done, about 2 min left``."""
        done = f"{len(self._over)} of {len(self._algorithms)} runs done"
        left_s = self.left_s(now)
        if left_s is None or len(self._over) == len(self._algorithms):
            return done
        return f"{done}, about {duration(left_s)} left"


def duration(seconds: float) -> str:
    """Seconds as people say them: 45 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


LINE_EVERY_S = 5.0
SPARK_WIDTH = 48
"""Characters of a sparkline: with its name and scale it fits 80 columns."""
RATE_EVERY_S = 0.5
"""Seconds of wall time between two values of a rate's sparkline; k and delay have one a step."""
_LEVELS, _PLAIN_LEVELS = "▁▂▃▄▅▆▇█", "_.-~=+*#"


def sparkline(values: Iterable[float], levels: str = _LEVELS) -> str:
    """Draw ``values`` as a character each, from 0, which stands for what is less, too, to the
    largest of them."""
    numbers = [max(value, 0.0) for value in tuple(values)]  # another thread may add to them
    most = max(numbers, default=0.0) or 1.0
    top = len(levels) - 1
    return "".join(levels[round(top * value / most)] for value in numbers)


def _history() -> deque[float]:
    return deque(maxlen=SPARK_WIDTH)


@dataclass
class _Trial:
    """The state of the run in progress, as far as it is known."""

    label: str
    steps: int | None
    index: int
    count: int
    began: float | None = None
    """When its first step had been finished, on the monotonic clock."""
    step: int = 0
    density: float = 1.0
    delay_s: float = 0.0
    accuracy: float | None = None
    rate_bits: float | None = None
    whole: Remaining | None = None
    """The time left for the whole comparison."""
    rates_bits: deque[float] = field(default_factory=_history)
    densities: deque[float] = field(default_factory=_history)
    """Mean over workers, a value for each step."""
    delays_s: deque[float] = field(default_factory=_history)
    """Longest of any worker, a value for each step."""
    rate_at_s: float = float("-inf")
    """When the latest of ``rates_bits`` was measured, in the time of link records."""
    workers: int = 0
    """Workers that have finished the latest step."""

    def finish_step(self, step: int, density: float, delay_s: float) -> None:
        """Take in a worker's step; steps before the latest are passed over."""
        self.density, self.delay_s = density, delay_s
        if step > self.step:
            self.step, self.workers = step, 1
            self.densities.append(density)
            self.delays_s.append(delay_s)
        elif step == self.step and self.workers:
            self.workers += 1
            self.densities[-1] += (density - self.densities[-1]) / self.workers
            self.delays_s[-1] = max(self.delays_s[-1], delay_s)

    def measure_rate(self, rate_bits: float, at_s: float) -> None:
        """Take in the requested rate of the watched link, in bit/s of model time."""
        self.rate_bits = rate_bits
        if at_s - self.rate_at_s >= RATE_EVERY_S:
            self.rates_bits.append(rate_bits)
            self.rate_at_s = at_s


class Progress:
    """Progress of a whole ``testbed run`` on stderr; rates and delays in model time."""

    def __init__(self, quiet: bool, dilation: float = 1.0, watched_link: str = "server") -> None:
        self._console = Console(file=sys.stderr)
        self.watched_link, self._quiet, self._dilation = watched_link, quiet, dilation
        self._trial: _Trial | None = None
        self._spoke = 0.0
        self._live: Live | None = None
        self.whole: Remaining | None = None
        """How far the whole comparison is, if there is one."""

    def insist(self, text: str) -> None:
        """One line that is wanted even by who wants none."""
        self._console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """One line of news."""
        if not self._quiet:
            self.insist(text)

    def begin(self, label: str, steps: int | None, index: int, count: int) -> None:
        """A run begins: the ``index``-th of ``count``, of at most ``steps`` steps."""
        self._trial = _Trial(label, steps, index, count, whole=self.whole)
        self._spoke = time.monotonic()
        if not self._quiet and self._console.is_terminal and self._live is None:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def event(self, event: dict[str, Any]) -> None:
        """An event of a node."""
        trial = self._trial
        if trial is None:
            return
        if event["kind"] == "step":
            if trial.began is None:
                trial.began = time.monotonic()
                if self.whole is not None:
                    self.whole.first_step(trial.began)
            delay_s = event["delay_s"] / self._dilation
            trial.finish_step(event["step"], event["density"], delay_s)
        elif event["kind"] == "evaluation":
            trial.accuracy = event["accuracy"]
        self._show(trial)

    def link(self, sample: dict[str, Any]) -> None:
        """A sample of a link."""
        if (
            self._trial is not None
            and sample.get("kind") == "sample"
            and sample["link"] == self.watched_link
            and sample["direction"] == "down"
        ):
            wall_s = max(sample["to_s"] - sample["from_s"], 1e-9)
            rate_bits = sample["asked_bits"] / wall_s * self._dilation
            self._trial.measure_rate(rate_bits, sample["to_s"])

    def end(self) -> None:
        """Nothing more is running."""
        self._trial = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self, trial: _Trial) -> None:
        if self._live is not None:
            utf8 = self._console.encoding.lower().startswith("utf")
            self._live.update(_panel(trial, _LEVELS if utf8 else _PLAIN_LEVELS))
        elif time.monotonic() - self._spoke >= LINE_EVERY_S:
            self._spoke = time.monotonic()
            self.say("  ".join(f"{name} {value}" for name, value in _facts(trial).items()))


def _facts(trial: _Trial) -> dict[str, str]:
    facts = {
        "run": f"{trial.index}/{trial.count} {trial.label}",
        "step": f"{trial.step}/{trial.steps}" if trial.steps else str(trial.step),
        "link": "-" if trial.rate_bits is None else f"{trial.rate_bits / 1e6:.1f} Mbit/s",
        "k": f"{trial.density:.4g}",
        "delay": f"{trial.delay_s * 1e3:.0f} ms",
        "accuracy": "-" if trial.accuracy is None else f"{trial.accuracy:.3f}",
    }
    if trial.whole and (whole_s := trial.whole.left_s(time.monotonic())) is not None:
        facts["left"] = f"about {duration(whole_s)}"
    elif trial.steps and trial.began and trial.step > 1:
        step_s = (time.monotonic() - trial.began) / (trial.step - 1)
        left = step_s * (trial.steps - trial.step + trial.steps * (trial.count - trial.index))
        facts["left"] = f"about {duration(left)}"
    return facts


def _panel(trial: _Trial, levels: str = _LEVELS) -> Group:
    facts = _facts(trial)
    table = Table(title=f"run {facts.pop('run')}", title_justify="left")
    for name in facts:
        table.add_column(name, justify="right", min_width=10)
    table.add_row(*facts.values())
    lines = Table.grid(padding=(0, 2))
    rows: list[tuple[str, deque[float], Callable[[float], str]]] = [
        ("link", trial.rates_bits, lambda bits: f"{bits / 1e6:.1f} Mbit/s"),
        ("k", trial.densities, lambda density: f"{density:.4g}"),
        ("delay", trial.delays_s, lambda seconds: f"{seconds * 1e3:.0f} ms"),
    ]
    for name, values, words in rows:
        if values:
            drawn = sparkline(values, levels).ljust(SPARK_WIDTH)
            lines.add_row(name, drawn, f"0 to {words(max(values))}")
    return Group(table, lines)
