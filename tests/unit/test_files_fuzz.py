"""Hostile pace files, profile files and files of variables: what they say, or a sentence that names the file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz_rig import TIMEOUT_S, Raw, altered, changed, fuzzed, memory_within, written
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import InputError
from testbed.runner.exec.launch_spec import check_size, read_env_file
from testbed.scenario.profile import read_profile, shipped
from testbed.scenario.recorded_paces import MAX_S, MAX_TIMES, read_step_times

pytestmark = pytest.mark.timeout(TIMEOUT_S)
SOON_S = 30.0
FACTOR, SPARE_BYTES = 40, 20 << 20
"""What reading may take: so many times the bytes of the file, and a buffer of 16 MiB."""
TABLES = [
    "step_ms\n101.5\n99.8\n",
    "# said\nstep,step_ms,busy_us\n0,101.5,99\n1,99.8,95\n",
    'a_s,"b_ms"\r\n"1.5",2\r\n0.5\r\n',
]
LISTS: list[Any] = [
    {"step_ms": [101.5, 99.8]},
    {"step_s": [1, 2.5], "busy_us": [3, 4], "about": "x", "nested": {"a_s": [1]}},
]
VARIABLES = ["A=1\nB=two words\n# said\n\nHERE\nNOT_HERE\r\n", "\ufeffTOKEN=a=b", "A="]
PROFILE = json.loads(next(iter(shipped().values())).read_text())
columns = st.none() | st.sampled_from(["step_ms", "a_s", "b_ms", "", "nested", "\ud800", "x" * 999])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


def outcome(path: Path, read: Callable[[], Any]) -> Any:
    """What was read; None where it was refused, with the file's name."""
    try:
        with memory_within(FACTOR * path.stat().st_size + SPARE_BYTES):
            return read()
    except InputError as error:
        assert str(path) in (error.where or ""), error
        assert len(str(error)) < 6000
        assert str(error).replace(str(path), "").isprintable()
    return None


def check_times(path: Path, column: str | None = None) -> None:
    times = outcome(path, lambda: read_step_times(path, column))
    if times is not None:
        assert 0 < len(times) <= MAX_TIMES and all(0 < each <= MAX_S for each in times)


@fuzzed
@given(st.sampled_from(TABLES).map(str.encode).flatmap(changed) | st.binary(max_size=200), columns)
def test_tables_of_step_times(folder: Path, data: bytes, column: str | None) -> None:
    path = folder / "pace.csv"
    path.write_bytes(data)
    check_times(path, column)


@fuzzed
@given(
    st.sampled_from(LISTS).flatmap(altered).map(written)
    | st.sampled_from(LISTS).map(written).flatmap(changed),
    columns,
)
def test_lists_of_step_times(folder: Path, data: bytes, column: str | None) -> None:
    path = folder / "pace.json"
    path.write_bytes(data)
    check_times(path, column)


@fuzzed
@given(altered(PROFILE).map(written) | st.just(written(PROFILE)).flatmap(changed))
def test_profiles(folder: Path, data: bytes) -> None:
    path = folder / "profile.json"
    path.write_bytes(data)
    profile = outcome(path, lambda: read_profile(path))
    if profile is not None:
        assert 0 < profile.total_s < float("inf")
        path.write_text(profile.text(), encoding="utf-8")
        assert read_profile(path) == profile


@fuzzed
@given(st.sampled_from(VARIABLES).map(str.encode).flatmap(changed) | st.binary(max_size=200))
def test_files_of_variables(folder: Path, data: bytes) -> None:
    path = folder / "variables"
    path.write_bytes(data)
    variables = outcome(path, lambda: read_env_file(path, {"HERE": "x"}))
    if variables is not None:
        assert all(name and "=" not in name and "\0" not in name + value for name, value in variables)  # fmt: skip
        assert all("\n" not in name + value for name, value in variables)
        check_size(variables)


LARGE = {
    "many columns and rows": (",".join(f"c{i}_s" for i in range(20_000)) + "\n" + "1\n" * 50_000, "csv"),
    "many rows": ("step_ms\n" + "1\n" * 3_000_000, "csv"),
    "a long field": ('step_ms\n"' + "1" * 200_000 + '"\n', "csv"),
    "an open quote": ('step_ms\n"' + "1\n" * 200_000, "csv"),
    "many names": ("a_s," * 1_000_000 + "\n1\n", "csv"),
    "many lists": ('{"step_ms": [' + "[]," * 3_000_000 + "1]}", "json"),
    "deep": ('{"step_ms": ' + "[" * 200_000, "json"),
    "a long number": ('{"step_ms": [' + "9" * 300_000 + "]}", "json"),
    "a number that is nothing": ('{"step_us": [5e-324]}', "json"),
    "a number that never ends": ('{"step_s": [1e300]}', "json"),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_large_files_of_step_times_are_answered_soon(folder: Path, name: str) -> None:
    """And not taken apart into more than memory should hold."""
    text, suffix = LARGE[name]
    path = folder / f"large.{suffix}"
    path.write_text(text)
    began_s = time.process_time()
    check_times(path)
    check_times(path, "c5_s")
    assert time.process_time() - began_s < SOON_S


@pytest.mark.parametrize("odd", [Raw("9" * 4000), Raw("[" * 100_000), Raw("1e9999")], ids=range(3))
def test_odd_profiles(folder: Path, odd: Raw) -> None:
    path = folder / "profile.json"
    for key in PROFILE:
        path.write_bytes(written({**PROFILE, key: odd}))
        assert outcome(path, lambda: read_profile(path)) is None or key in {"batch"}
