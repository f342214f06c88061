"""What a job prints is kept in whole lines, up to a bound, whatever the disk takes."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.user_files import Output, PinnedFolder

LINE = b"x" * 99 + b"\n"


@pytest.fixture
def most() -> Iterator[int]:
    """So many bytes a file may have: what is written beyond is taken in part, as on a disk that fills up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (250, before[1]))
    yield 250
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_so_much_is_kept_and_no_more(tmp_path: Path) -> None:
    output = Output(PinnedFolder(tmp_path), 8, shown=False, several=False, most_bytes=250)
    for node in ["loud", "quiet", *["loud"] * 100]:
        output.line(node, 0, LINE)
    output.line("loud", 0, b"the end\n")
    output.close()
    assert (tmp_path / "loud.log").read_bytes() == LINE * 2
    assert (tmp_path / "quiet.log").read_bytes() == LINE
    assert output.failure == "loud printed more than 250 bytes: what came after them was not kept"
    assert output.last["loud", 0] == "the end"


def test_of_a_line_that_the_disk_does_not_take_nothing_is_left(tmp_path: Path, most: int) -> None:
    output = Output(PinnedFolder(tmp_path), 8, shown=False, several=False)
    for _ in range(5):
        output.line("loud", 0, LINE)
    output.line("loud", 0, b"short\n")
    output.close()
    assert (tmp_path / "loud.log").read_bytes() == LINE * 2 + b"short\n"
    assert output.failure is not None and "not all output of loud was kept" in output.failure
