"""The manifest: complete, serialisable, and silent about whose machine it was."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import pytest

from testbed.records.manifest import (
    THRESHOLDS,
    commit,
    gpus,
    machine_facts,
    manifest,
    tcp_timers,
)


def make(**changed):
    given = {
        "scenario_name": "demo", "content_hash": "ab" * 8, "algorithm": {"name": "none"}, "seed": 1,
        "dilation": 10.0, "pace_s": 2.0, "nodes": {"server": {"role": "server", "rank": 0, "peer": 0}},
        "links": [{"link": "server", "rate_bits": 1}], "fabric": "sim",
    }  # fmt: skip
    return manifest(**{**given, **changed})


def test_it_holds_conditions_and_thresholds() -> None:
    found = json.loads(json.dumps(make()))
    assert found["thresholds"] == asdict(THRESHOLDS)
    assert found["scenario_hash"] == "ab" * 8
    assert found["links"] == [{"link": "server", "rate_bits": 1}]
    assert found["started_utc"].endswith("+00:00")
    assert "200 ms is 20 ms" in found["tcp_timers"]
    assert found["machine"]["versions"]["python"] == platform.python_version()


def test_it_refuses_to_be_incomplete() -> None:
    with pytest.raises(ValueError, match="no name"):
        make(algorithm={})
    with pytest.raises(ValueError, match=r"'server'.*peer"):
        make(nodes={"server": {"role": "server", "rank": 0}})


def test_timers_without_dilation() -> None:
    assert "Not dilated" in tcp_timers(1.0)


def test_gpus_are_named_as_their_driver_does(tmp_path: Path) -> None:
    assert gpus(tmp_path) is None
    for number in range(2):
        (tmp_path / "gpus" / f"0000:0{number}:00.0").mkdir(parents=True)
        (tmp_path / "gpus" / f"0000:0{number}:00.0" / "information").write_text(
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 25\n"
        )
    assert gpus(tmp_path) == {"models": ["NVIDIA H100 80GB HBM3"] * 2, "driver": None}
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
        "GCC version:  gcc version 13.3.0\n"
    )
    assert (gpus(tmp_path) or {})["driver"] == "580.159.04"


def test_the_machine_is_described_without_its_name() -> None:
    found = machine_facts()
    assert found["cpu"]["count"] >= found["cpu"]["usable"] >= 1
    assert found["memory_bytes"] > 1 << 20
    assert found["versions"]["numpy"]
    assert not {"hostname", "node", "name"} & set(found)


def test_versions_are_those_of_all_libraries_that_take_part() -> None:
    found = machine_facts()["versions"]
    for name in ("narrows", "torch", "numba", "llvmlite", "pydantic-core", "scipy", "greenlet"):
        assert found[name] == version(name), name
    assert not {"pytest", "ruff", "hypothesis"} & set(found), "tools of developers take no part"


def test_the_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    assert commit(tmp_path) is None

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "x", "--no-gpg-sign")
    clean = commit(tmp_path)
    assert clean is not None
    assert (len(clean["hash"]), clean["dirty"]) == (40, False)
    (tmp_path / "file").write_text("b")
    assert commit(tmp_path) == {"hash": clean["hash"], "dirty": True}
    (tmp_path / ".git" / "index").write_bytes(b"broken")
    assert commit(tmp_path) == {"hash": clean["hash"], "dirty": None}
