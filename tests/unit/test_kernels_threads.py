"""Threads: they show in the time alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import kernels_rig as rig
import numpy as np
import pytest
import random_reference
import torch
from torch import Tensor

from testbed.compress.kernels import cpu
from testbed.compress.kernels.base import Workspace
from testbed.compress.kernels.compilation import CHUNK, chunks
from testbed.compress.kernels.cpu import CpuKernels

SIZE = 9 * CHUNK + 12_345


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def everything() -> list[object]:
    """What all operations give for one vector."""
    x, y = rig.vector(SIZE), rig.vector(SIZE, seed=2)
    host, space, out = CpuKernels(), Workspace(), torch.empty(SIZE)
    indices, values = (one.clone() for one in host.select_above(x, 0.3, space))
    results: list[object] = [
        host.measure(x),
        host.moments(x),
        host.moments(x, 1.0),
        host.count_above(x, 1.0),
        host.digit_counts(x),
        host.digit_counts(x, 1, 1016),
        indices,
        values,
        host.add(x, y, out),
        out.clone(),
    ]
    host.subtract_at(out, indices, values)
    results.append(out.clone())
    host.add_at(out, indices, values)
    return [*results, host.add(x, y, out), out]


def test_results_are_those_of_one_thread() -> None:
    torch.set_num_threads(1)
    wanted = everything()
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        for found, one in zip(everything(), wanted, strict=True):
            if isinstance(one, Tensor | np.ndarray):
                assert np.array_equal(np.asarray(found), np.asarray(one))
            else:
                assert found == one


@pytest.mark.parametrize("threads", [1, 3])
def test_random_numbers_are_those_of_one_thread(threads: int) -> None:
    torch.set_num_threads(threads)
    drawn = np.empty(SIZE, np.float32)
    random_reference.uniforms_by_threads(7, drawn)
    assert np.array_equal(drawn, random_reference.uniforms(7, SIZE))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("size", [0, 1, CHUNK, 4 * CHUNK - 1, 4 * CHUNK, SIZE])
def test_parts_are_whole_chunks_that_cover_all(size: int, threads: int) -> None:
    torch.set_num_threads(threads)
    parts = cpu.parts(size)
    assert 1 <= len(parts) <= max(1, min(threads, chunks(size)))
    assert parts[0][0] == 0 and parts[-1][1] == size
    assert all(first % CHUNK == 0 for first, _ in parts)
    assert all(before[1] == after[0] for before, after in pairwise(parts))


def test_one_thread_makes_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_executor", lambda _: pytest.fail("a pool was made"))
    torch.set_num_threads(1)
    assert cpu.over(SIZE, lambda *part: part) == [(0, 0, SIZE)]
    torch.set_num_threads(8)
    assert cpu.over(CHUNK, lambda *part: part) == [(0, 0, CHUNK)]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_comes_out_once_nobody_works_any_more(failing: int) -> None:
    torch.set_num_threads(3)
    running: set[int] = set()

    def work(number: int, first: int, last: int) -> None:
        running.add(number)
        rig.vector(last - first)
        running.discard(number)
        if number == failing:
            raise ArithmeticError(str(number))

    with pytest.raises(ArithmeticError, match=str(failing)):
        cpu.over(SIZE, work)
    assert not running


FORKED = """
import os, torch
from testbed.compress.kernels import cpu as pool
torch.set_num_threads(2)
parts = lambda: len(pool.over(2**21, lambda *part: part))
assert parts() == 2
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0 if parts() == 2 else 1)
"""


def test_a_forked_process_has_threads_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], timeout=60, check=False)
    assert done.returncode == 0
