"""What ``testbed bench overlap`` derives: the schedule, the bound, the scenarios, the checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.bench.cli import app
from testbed.bench.overlap import (
    RESULT,
    VARIANTS,
    Chain,
    OverlapBench,
    OverlapPlan,
    bound_s,
    chain_of,
    checks,
    median_step_s,
    rate_bits,
    rows,
    step_s,
)
from testbed.bench.results import Suite
from testbed.errors import InputError

TWO = Chain((1, 1), (2, 2), (1, 1), (1, 1))
SLOW = Chain((1, 1, 1), (1, 1, 1), (4, 4, 4), (4, 4, 4))
UNEVEN = Chain((1, 2, 3), (2, 4, 6), (1, 0.5, 9), (2, 0.5, 3))


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        # gradients of the last layer after 4, of the first after 6; the last message has two links to itself
        (TWO, {"whole": 10, "buckets": 9, "backward": 8, "forward": 8}),
        # one link carries 4 to 16, the next 8 to 20; "forward" lets layer 0 pass layer 1, which layer 1 waits 3 for
        (SLOW, {"whole": 30, "buckets": 22, "backward": 20, "forward": 19}),
        # gradients after 12, 16, 18; the last layer's long bucket holds up the others until 21, and until 24 on the way down
        (UNEVEN, {"whole": 34, "buckets": 32.5, "backward": 26.5, "forward": 26}),
    ],
)
def test_a_step_of_the_schedule(chain: Chain, expected: dict[str, float]) -> None:
    assert {variant: step_s(chain, variant) for variant in VARIANTS} == expected


def test_the_bound_is_the_larger_of_computing_and_sending() -> None:
    assert bound_s(TWO) == max(6 + 1 + 1, 4 + 2 + 1)
    assert bound_s(SLOW) == max(6 + 4 + 4, 4 + 12 + 4)
    assert bound_s(UNEVEN) == max(18 + 1 + 2, 12 + 10.5 + 2)


def test_what_is_free_takes_no_time() -> None:
    free = Chain((1, 1), (2, 2), (0, 0), (0, 0))
    assert {step_s(free, variant) for variant in VARIANTS} == {6.0} == {bound_s(free)}


def _events(steps: list[float], bucket_bytes: list[int]) -> dict[str, list[dict[str, Any]]]:
    return {
        "step": [{"step": n, "start_s": 5.0, "end_s": 5.0 + s} for n, s in enumerate(steps, 1)],
        "bucket": [
            {"bucket": n, "bytes_up": size, "bytes_down": 2 * size}
            for n, size in enumerate(bucket_bytes)
        ],
    }


def test_what_is_taken_from_records() -> None:
    events = _events([9.0, 1.0, 3.0, 2.0, 8.0], [1448 * (n + 1) for n in range(12)])
    assert median_step_s(events, 1) == pytest.approx(2.0)
    chain = chain_of(events, 8 * 1514, 36.0)
    assert chain.up_s == pytest.approx(
        [12.0 - n for n in range(12)]
    )  # bucket 0 is the last layer's
    assert chain.down_s == pytest.approx([24.0 - 2 * n for n in range(12)])
    assert chain.compute_s == pytest.approx(36.0) and chain.backward_s[0] == pytest.approx(2.0)


def test_both_orders_are_judged_and_so_is_what_does_not_overlap() -> None:
    bound = bound_s(TWO)
    good = rows(1.0, 1e6, TWO, {"whole": [10], "buckets": [9], "backward": [8], "forward": [8.5]})
    assert [row["step/ideal"] for row in good] == pytest.approx([1, 1, 1, 8.5 / 8])
    assert [check.met for check in checks(good, [1.0])] == [True, True, True]
    slow = rows(1.0, 1e6, TWO, {"whole": [9], "backward": [8], "forward": [1.2 * bound, 9.3, 9.3]})
    assert [check.met for check in checks(slow, [1.0])] == [True, False, False]
    missing = rows(1.0, 1e6, TWO, {"whole": [9], "backward": [8], "forward": []})
    assert [check.met for check in checks(missing, [1.0])] == [True, None, True]


def test_a_load_of_which_nothing_is_known_is_not_met() -> None:
    steps = {"whole": [10], "buckets": [9], "backward": [8], "forward": [8.5]}
    found = checks(rows(1.0, 1e6, TWO, steps), [1.0, 3.0])
    assert [check.met for check in found] == [True, True, True, None, None, None]
    assert {check.name.partition(":")[0].partition(",")[0] for check in found[3:]} == {"load 3"}
    assert Suite("", [], found).met is None


def test_a_gradient_takes_its_load_of_the_backward_pass() -> None:
    rates = [rate_bits(load, 0.24) for load in (0.3, 1.0, 3.0)]
    assert rates[0] / rates[1] == pytest.approx(1 / 0.3) and rates[1] / rates[2] == pytest.approx(3)
    assert rates[1] * 0.16 == pytest.approx(8 * 4 * 182_922, rel=0.06)


@pytest.mark.parametrize("load", [0.5, 2.0])
def test_steps_in_virtual_time_are_those_of_the_schedule(tmp_path: Path, load: float) -> None:
    plan = OverlapPlan("sim", [load], workers=2, steps=5, skip=2, repeat=1, host_costs=False)
    found = {row["variant"]: row for row in OverlapBench(plan, tmp_path, lambda _: None).run().rows}
    assert {name: row["step/ideal"] for name, row in found.items()} == pytest.approx(
        dict.fromkeys(VARIANTS, 1.0), abs=0.02
    )


def test_the_command(tmp_path: Path) -> None:
    words = f"overlap --fabric sim --quick --load 3 --workers 1 --json --quiet --out {tmp_path}"
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 0, result.output
    (written,) = tmp_path.glob(f"measurements/*_overlap/{RESULT}")
    known = json.loads(result.stdout)
    assert known == json.loads(written.read_text())
    assert [row["variant"] for row in known["rows"]] == list(VARIANTS)
    assert [check["met"] for check in known["checks"]] == [True, True, True]
    assert [run["algorithm"] for run in known["runs"]] == list(VARIANTS)


def test_some_steps_must_count(tmp_path: Path) -> None:
    words = f"overlap --fabric sim --steps 5 --skip 4 --out {tmp_path}"
    result = CliRunner().invoke(app, words.split())
    assert isinstance(result.exception, InputError) and "of 5 steps 4" in str(result.exception)
