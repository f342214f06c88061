"""``doctor --fix`` in an environment of its own: what it runs, that it mends, and what it says where it may not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer

from testbed.cli import doctor as command
from testbed.host import checks, docker_engine, images, packages, paths
from testbed.host.checks import CHECKS
from testbed.host.uml import guest

APT_GET = """#!/bin/sh
echo "apt-get $*" >> "$NARROWS_TOLD"
[ "$1" = install ] && for package in "$@"; do :; done && [ -n "$PROVIDED" ] && : > "$PROVIDED" && chmod +x "$PROVIDED"
exit ${APT_STATUS:-0}
"""
APT_CACHE = """#!/bin/sh
echo "  Candidate: 3.16-1"
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only programs are an ``apt-get`` that notes what it is told and provides iperf3, and its ``apt-cache``."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("apt-get", APT_GET), ("apt-cache", APT_CACHE)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for name in ("sh", "chmod"):
        (programs / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("NARROWS_TOLD", str(tmp_path / "told"))
    monkeypatch.setenv("PROVIDED", str(programs / "iperf3"))
    (iperf3,) = [check for check in CHECKS if check.name == "iperf3"]
    monkeypatch.setattr(checks, "CHECKS", (iperf3,))
    return tmp_path / "told"


def fixed(capsys: pytest.CaptureFixture[str], *, fix: bool = True) -> dict[str, object]:
    command.doctor(fix=fix, as_json=True)
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    found: dict[str, object] = check
    return found


def test_a_missing_program_is_installed_once(
    told: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert fixed(capsys, fix=False)["ok"] is False
    assert not told.exists(), "without --fix nothing is run"
    assert fixed(capsys) == {"name": "iperf3", "ok": True, "detail": "found (optional)", "fix": ""}
    ran = told.read_text().splitlines()
    assert ran == [
        "apt-get update -qq", "apt-get install -y -qq --no-install-recommends iperf3",
    ]  # fmt: skip
    assert fixed(capsys)["ok"] is True
    assert told.read_text().splitlines() == ran, "what is there is not installed again"


def test_who_may_not_install_is_told_the_command(
    told: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = fixed(capsys)
    assert (found["ok"], found["detail"]) == (False, "missing: iperf3 (optional)")
    assert "`sudo apt-get update && sudo apt-get install -y iperf3`" in str(found["fix"])
    assert not told.exists()


def test_an_installation_that_fails_or_provides_nothing_is_no_success(
    told: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("PROVIDED")
    assert fixed(capsys)["ok"] is False
    monkeypatch.setenv("APT_STATUS", "100")
    found = fixed(capsys)
    assert found["ok"] is False and "apt-get" in f"{found['detail']} {found['fix']}"


def test_a_required_need_that_stays_unmet_is_exit_code_3(
    told: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    needs = packages.ENGINE
    listed = checks.HostCheck("engine", lambda: checks.Finding(False, "absent"), lambda: packages.install(needs))  # fmt: skip
    monkeypatch.setattr(checks, "CHECKS", (listed,))
    with pytest.raises(typer.Exit) as left:
        command.doctor(fix=True)
    assert left.value.exit_code == 3
    said = capsys.readouterr().out
    assert "FAIL  engine" in said and "install -y docker-c" in said and not told.exists()


def test_every_remedy_is_the_one_of_its_check() -> None:
    """What ``--fix`` would do about each; nothing else is touched."""
    remedies = {check.name: check.mend for check in CHECKS if check.mend is not None}
    assert set(remedies) == {
        "environment", "extras", "docker engine", "docker compose", "images", "guest kernel",
        "iperf3",
    }  # fmt: skip
    assert remedies["environment"] is remedies["extras"] is paths.ensure
    assert remedies["docker engine"] is remedies["docker compose"] is docker_engine.ensure
    assert remedies["images"] is images.ensure
    assert guest.GUEST, "the guest kernel's packages have names"
