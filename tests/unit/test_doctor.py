"""The doctor: what it says about a machine, and when that is an error."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import typer

from testbed.cli import doctor as command
from testbed.errors import MachineError, install_command
from testbed.host import checks
from testbed.host.checks import Finding, HostCheck, judge, mended
from testbed.host.paths import ROOT

GOOD = HostCheck("good", lambda: Finding(True, "fine", "not needed"))
BAD = HostCheck("bad", lambda: Finding(False, "broken", "mend it"))
PART = HostCheck("part", lambda: Finding(False, "away", "fetch it"), fabrics="swarms")
NICE = HostCheck("nice", lambda: Finding(False, "absent", "get it"), required=False)


def _run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *listed: HostCheck,
    **flags: bool,
) -> tuple[int, str]:
    monkeypatch.setattr(checks, "CHECKS", listed)
    try:
        command.doctor(**flags)
        code = 0
    except typer.Exit as left:
        code = left.exit_code
    return code, capsys.readouterr().out


def test_json_has_every_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = _run(monkeypatch, capsys, GOOD, BAD, PART, NICE, as_json=True)
    assert code == 3
    assert json.loads(out) == {
        "checks": [
            {"name": "good", "ok": True, "detail": "fine", "fix": ""},
            {"name": "bad", "ok": False, "detail": "broken", "fix": "mend it"},
            {
                "name": "part",
                "ok": False,
                "detail": "away (only swarms need it)",
                "fix": "fetch it",
            },
            {"name": "nice", "ok": False, "detail": "absent (optional)", "fix": "get it"},
        ]
    }


def test_what_is_optional_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = _run(monkeypatch, capsys, GOOD, NICE)
    assert code == 0 and "absent (optional)" in out and "→ get it" in out


def test_a_machine_error_is_a_finding() -> None:
    def probe() -> Finding:
        raise MachineError("no engine", fix="start one")

    assert judge(HostCheck("engine", probe)).finding == Finding(False, "no engine", "start one")


def test_fix_mends_and_looks_again() -> None:
    state = {"ok": False}
    check = HostCheck(
        "thing",
        lambda: Finding(state["ok"], "thing", "mend"),
        lambda: state.update(ok=True),
    )
    assert mended(check).finding.ok and judge(check).finding.ok


def test_fix_that_fails_says_why() -> None:
    def mend() -> None:
        raise MachineError("apt-get failed", fix="look at its log")

    found = mended(HostCheck("thing", lambda: Finding(False, "absent"), mend)).finding
    assert found == Finding(False, "apt-get failed", "look at its log")


def test_missing_libraries_are_a_sentence() -> None:
    command = [sys.executable, "-S", "-m", "testbed", "doctor"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "is not installed. Run `make setup`\n" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("extras", "checkout", "command"),
    [
        ([], True, "make setup"),
        (["sim", "report", "sim"], True, "make setup"),
        (["report", "export"], True, ".venv/bin/pip install -e '.[export,report]'"),
        ([], False, "pip install narrows"),
        (["sim", "report", "sim"], False, "pip install 'narrows[report,sim]'"),
    ],
)
def test_command_that_brings_libraries_is_one_that_can_be_given(
    extras: list[str], checkout: bool, command: str
) -> None:
    assert install_command(extras, checkout=checkout) == command


@pytest.mark.parametrize(
    ("absent", "ok"), [({"polars", "mlflow", "wandb"}, True), ({"torch"}, False)]
)
def test_only_exports_need_the_libraries_of_exports(
    monkeypatch: pytest.MonkeyPatch, absent: set[str], ok: bool
) -> None:
    monkeypatch.setattr(checks, "_absent", absent.__contains__)
    found = checks.extras()
    assert found.ok is ok and ok == ("missing" not in found.detail)


@pytest.mark.parametrize(
    ("free_gb", "gpu", "fine"),
    [
        (5.9, False, (True, True)),
        (5.9, True, (False, True)),
        (5.4, True, (False, False)),
        (1.9, False, (False, True)),
        (1.4, False, (False, False)),
    ],
)
def test_room_on_the_disk_is_what_an_installation_takes(
    monkeypatch: pytest.MonkeyPatch, free_gb: float, gpu: bool, fine: tuple[bool, bool]
) -> None:
    """By the environment, and by the images that containers alone need."""
    free = SimpleNamespace(free=free_gb * 10**9)
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: free)
    monkeypatch.setattr(checks, "has_gpu", lambda: gpu)
    assert (checks.disk().ok, checks.disk_of_images().ok) == fine


def test_the_docs_say_how_much_room_that_is() -> None:
    environment, images = f"{checks.ENVIRONMENT_GB:g} GB", f"{checks.IMAGES_GB:g} GB"
    said = (ROOT / "docs" / "first-steps" / "install.md").read_text()
    assert f"{environment} of disk for the environment, {checks.GPU_ENVIRONMENT_GB:g} GB" in said
    assert f"Compose 1.29 or 2; {images} |" in said
    assert f"images take {checks.GPU_IMAGES_GB:g} GB |" in said
    artifact = (ROOT / "docs" / "artifact.md").read_text()
    assert f"| disk | {environment} for the environment, {images} for images |" in artifact


def test_names_are_unique_and_every_probe_answers() -> None:
    names = [check.name for check in checks.CHECKS]
    assert len(names) == len(set(names))
    for check in checks.CHECKS:
        shown = judge(check).to_json()
        assert set(shown) == {"name", "ok", "detail", "fix"}
        assert shown["detail"] and (shown["ok"] or shown["fix"])
