"""What an engine of ours changed on the host is restored, and nothing that somebody else has changed since."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from testbed.errors import MachineError
from testbed.fabric.file_view import NODE_USER
from testbed.host import docker_engine as engine
from testbed.host.docker_engine import EngineHost


def test_what_somebody_else_has_changed_since_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("changed", "changed-since", "as-before", "changed-back")
    paths = {name: tmp_path / name for name in names}
    commands: list[list[str]] = []

    def told(values: str, policies: tuple[str, str]) -> EngineHost:
        settings = {str(path): value for path, value in zip(paths.values(), values, strict=True)}
        tools = dict(zip(("iptables", "ip6tables"), policies, strict=True))
        return EngineHost(settings, tools, rules=True, bridge=True)

    before, up = told("0000", ("ACCEPT", "ACCEPT")), told("1101", ("DROP", "DROP"))
    monkeypatch.setattr(engine, "host", lambda: told("1200", ("DROP", "REJECT")))
    monkeypatch.setattr(engine, "run", commands.append)
    done = engine._restore(before, up)
    assert paths["changed"].read_text() == "0\n"
    assert [path.name for path in tmp_path.iterdir()] == ["changed"]
    assert commands == [["iptables", "-P", "FORWARD", "ACCEPT"]]
    assert len(done) == 2


def test_who_is_not_root_does_not_stop_roots_engine(tmp_path: Path) -> None:
    state, own = tmp_path / "state.json", os.geteuid()
    engine._save(state, {})
    state.chmod(0)
    if own == 0:
        os.seteuid(NODE_USER)
    try:
        with pytest.raises(MachineError, match=r"started by root.*sudo .* setup stop"):
            engine.stop(state=state)
    finally:
        os.seteuid(own)
    assert engine.stop(state=tmp_path / "none.json") == []


def test_what_the_host_was_like_before_the_first_of_several_engines_is_kept(tmp_path: Path) -> None:
    """The first ended by itself, and restored nothing; a restart of the machine restores all."""
    state = tmp_path / "state.json"

    def before(value: str) -> EngineHost:
        return EngineHost({"net/ipv4/ip_forward": value}, {}, rules=False, bridge=False)

    for value in ("0", "1"):
        engine._write(state, None, before(value), mounted=False)
    noted = json.loads(state.read_text())
    assert EngineHost(**noted["before"]) == before("0")
    state.write_text(json.dumps({**noted, "boot": "another"}))
    engine._write(state, None, before("1"), mounted=False)
    assert EngineHost(**json.loads(state.read_text())["before"]) == before("1")
