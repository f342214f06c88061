"""Sparklines of rate, k and delay on a terminal of 80 columns; plain lines elsewhere."""

from __future__ import annotations

import io
from collections import deque
from typing import ClassVar

import pytest
from rich.console import Console

from testbed.runner import progress as module
from testbed.runner.progress import SPARK_WIDTH, Progress, sparkline


def step(number: int, density: float, delay_s: float) -> dict[str, object]:
    return {"kind": "step", "step": number, "density": density, "delay_s": delay_s}


def sample(to_s: float, bits: float, link: str = "server") -> dict[str, object]:
    about = {"kind": "sample", "link": link, "direction": "down"}
    return {**about, "from_s": to_s - 0.1, "to_s": to_s, "asked_bits": bits * 0.1}


def fed(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> Progress:
    """Progress after 60 s of a run whose rate falls to 60 % in its middle, two workers, dilation 2."""
    monkeypatch.setattr("sys.stderr", stream)
    progress = Progress(quiet=False, dilation=2.0)
    progress._console = Console(file=stream, force_terminal=terminal, width=80)
    progress.begin("adatopk s1", 60, 1, 4)
    for number in range(1, 61):
        fast = number <= 30
        progress.link(sample(float(number), 100e6 if fast else 60e6))
        progress.link(sample(float(number), 1e9, "worker-0"))
        progress.event(step(number, 0.1 if fast else 0.04, 0.2))
        progress.event(step(number, 0.3 if fast else 0.2, 0.4))
    return progress


def test_values_are_drawn_from_zero_to_the_largest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 5, 0]) == "██▁"
    assert sparkline([0.0, 0.0]) == "▁▁" and sparkline([]) == ""
    assert sparkline([0, 7], "_.-~=+*#") == "_#"


class Growing(float):
    """A value that is compared while another one comes."""

    values: ClassVar[deque[float]] = deque()

    def __lt__(self, other: float) -> bool:
        self.values.append(1.0)
        return float(self) < float(other)


def test_values_that_come_while_they_are_drawn_are_drawn_next_time() -> None:
    Growing.values.extend([Growing(1.0), 2.0])
    assert sparkline(Growing.values) == "▅█"


def test_the_panel_fits_80_columns_and_shows_when_values_fell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress = fed(io.StringIO(), monkeypatch, terminal=False)
    assert progress._trial is not None
    shown = io.StringIO()
    Console(file=shown, width=80, force_terminal=False).print(module._panel(progress._trial))
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    high, low = SPARK_WIDTH - 30, 30
    by_name = {line.split()[0]: line for line in lines if line.split() and "0 to" in line}
    assert by_name["link"].split()[1] == "█" * high + "▅" * low  # 0.6 of seven levels
    assert by_name["k"].split()[1] == "█" * high + "▅" * low
    assert by_name["delay"].split()[1] == "█" * SPARK_WIDTH
    assert by_name["link"].endswith("0 to 200.0 Mbit/s")
    assert by_name["k"].rstrip().endswith("0 to 0.2")  # mean of two workers
    assert by_name["delay"].rstrip().endswith("0 to 200 ms")  # the longer of two, in model time


def test_a_terminal_gets_sparklines_and_the_end_clears_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    progress = fed(stream, monkeypatch, terminal=True)
    assert progress._live is not None
    progress._live.refresh()
    progress.end()
    assert "█" in stream.getvalue() and "0 to 200.0 Mbit/s" in stream.getvalue()
    assert progress._live is None


def test_elsewhere_plain_lines_without_control_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(module, "LINE_EVERY_S", 0.0)
    fed(stream, monkeypatch, terminal=False)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 120
    assert "k 0.2" in lines[-1] and "link 120.0 Mbit/s" in lines[-1]
    assert not [line for line in lines if "\x1b" in line or "▁" in line or "█" in line]
