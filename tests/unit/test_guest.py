"""Guests: what is decided and passed on without booting one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from testbed.cli import options as flag
from testbed.cli.messages import app as messages
from testbed.cli.run import run
from testbed.errors import InputError, MachineError
from testbed.host import images
from testbed.host.packages import Need
from testbed.host.uml import docker_engine, guest
from testbed.host.uml.guest import Relay
from testbed.host.uml.inside import GuestOrder, GuestOutcome

GIB = 2**30


def test_order_arrives_as_it_was_sent(tmp_path: Path) -> None:
    order = GuestOrder(["echo", "ä b"], [tmp_path], docker=True, environment={"A": "1"})
    order.write(tmp_path)
    assert GuestOrder.read(tmp_path) == order


def test_order_leaves_out_what_only_the_host_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARROWS_STATE", "/somewhere")
    monkeypatch.setenv("COLUMNS", "80")
    given = GuestOrder(["true"]).environment
    assert "NARROWS_STATE" not in given and given["COLUMNS"] == "80"


def test_outcome_arrives_or_there_is_none(tmp_path: Path) -> None:
    assert GuestOutcome.read(tmp_path) is None
    GuestOutcome(3, "it broke").write(tmp_path)
    assert GuestOutcome.read(tmp_path) == GuestOutcome(3, "it broke")


def test_relay_passes_on_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "growing"
    reading, writing = os.pipe()
    with Relay(path, writing) as relay, path.open("ab", buffering=0) as file:
        file.write(b"one")
        relay.move()
        assert os.read(reading, 10) == b"one"
        file.write(b"two")
    assert os.read(reading, 10) == b"two"
    os.close(reading), os.close(writing)


@pytest.mark.parametrize(
    ("flags", "needed"), [("fpu avx2 amx_tile", True), ("fpu avx2 avx512f", False)]
)
def test_newer_processors_are_known_by_their_flags(
    tmp_path: Path, flags: str, needed: bool
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor : 0\nflags\t\t: {flags}\n")
    assert guest.needed(info) is needed


def test_memory_is_what_can_be_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "available", lambda: 4 * GIB)
    assert (
        guest.guest_memory_bytes(None) == 3 * GIB and guest.guest_memory_bytes(2 * GIB) == 2 * GIB
    )
    with pytest.raises(MachineError, match=r"5\.0 GiB does not fit: 4\.0 GiB"):
        guest.guest_memory_bytes(5 * GIB)
    monkeypatch.setattr(guest, "available", lambda: 64 * GIB)
    assert guest.guest_memory_bytes(None) == guest.ENOUGH


def test_what_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = (Need("User-mode Linux", lambda: False, ("user-mode-linux",)),)
    monkeypatch.setattr(guest, "GUEST", lacking)
    with pytest.raises(MachineError, match="apt-get install user-mode-linux") as caught:
        guest.require()
    assert caught.value.exit_code == 3


def test_a_disk_that_is_made_is_found_without_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may not speak to the host's engine can still use what root has made."""
    monkeypatch.setattr(docker_engine, "BUILD", tmp_path)
    monkeypatch.setattr(docker_engine, "cache", lambda name: tmp_path / "mine" / name)
    monkeypatch.setattr(images, "tags", lambda: images.Tags("n/base:1", "n/runtime:2", "n/node:3f"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MachineError, match=r"making it needs root.*testbed setup guest"):
        docker_engine.ensure()
    (tmp_path / "guest").mkdir()
    (tmp_path / "guest" / "docker-0.ext4").touch()  # another version's
    with pytest.raises(MachineError, match="making it needs root"):
        docker_engine.ensure()
    made = tmp_path / "guest" / "docker-3f.ext4"
    made.touch()
    assert docker_engine.ensure() == made


def _invoke(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    """The command line that a guest would be given."""
    seen: list[str] = []

    def leave(command: list[str], writable: list[Path], disk: Path | None) -> None:
        seen.extend(command)
        raise typer.Exit(0)

    monkeypatch.setattr(flag, "_leave", leave)
    app = typer.Typer()
    app.command("run")(run)
    app.add_typer(messages, name="messages")
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, InputError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return seen


def test_command_is_repeated_without_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--guest", "s.yaml", "--algo", "none", "--algo", "adatopk", "--seed", "1-3", "--json"]
    seen = _invoke(monkeypatch, "run", *given)
    assert seen[0] == "run" and seen[-2:] == ["--", "s.yaml"] and "--guest" not in seen
    text = " ".join(seen)
    assert "--algo none --algo adatopk" in text and "--seed 1-3" in text and "--json" in text
    assert "--fabric netns" in text and "--quiet" not in text


def test_a_verb_of_two_words_is_repeated_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--guest", "job.jsonl", "s.yaml", "--timed"]
    seen = _invoke(monkeypatch, "messages", "replay", *given)
    assert seen[:2] == ["messages", "replay"] and seen[-3:] == ["--", "job.jsonl", "s.yaml"]
    assert "--timed" in seen and "--guest" not in seen


def test_nothing_can_be_kept_in_a_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--keep"):
        _invoke(monkeypatch, "run", "s.yaml", "--guest", "--keep")
