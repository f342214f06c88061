"""``testbed run`` with everything that a message is made of, over real sockets in namespaces."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_rig import Command, Write

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]
ROWS = ("laplace-0.05+int8", "qsgd-4bit", "onebit-double", "topk-0.05+layers")
STEPS = 12


def payloads(command: Command, algorithm: str) -> dict[tuple[str, int], int]:
    """CRC of every payload, by worker and step."""
    return {
        (event["node"], event["step"]): event["payload_crc"]
        for path in command.folder.glob(f"runs/*_{algorithm.replace('+', '-')}_s*/events/worker-*")
        for event in map(json.loads, path.read_text().splitlines())
        if event["kind"] == "step"
    }


def records(run: dict[str, Any], pattern: str, kind: str) -> list[dict[str, Any]]:
    paths = sorted(Path(run["dir"]).glob(f"events/{pattern}"))
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_every_part_of_a_message_crosses_real_sockets(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    path = scenario(steps=STEPS, algorithms=", ".join(f"'{row}'" for row in ROWS))
    first = Command(tmp_path / "first", "run", path, "--json")
    _, out, err = first.finish(170.0)
    runs = {run["algorithm"]: run for run in json.loads(out)["runs"]}
    assert list(runs) == list(ROWS), err
    for run in runs.values():
        summary = json.loads((Path(run["dir"]) / "summary.json").read_text())
        assert run["steps"] == STEPS
        for measure in ("byte_identity", "frame_identity"):
            assert summary["measures"][measure]["state"] == "valid", summary["reasons"]
        done = json.loads((Path(run["dir"]) / "evidence.json").read_text())["nodes"]
        assert len(done) == 3
        assert len({message["summary"]["parameters"] for message in done.values()}) == 1
    for step in records(runs["laplace-0.05+int8"], "worker-*", "step"):
        assert step["selection"]["passes"] >= 1.0
    down = {name: records(run, "worker-0*", "step")[0]["bytes_down"] for name, run in runs.items()}
    assert down["onebit-double"] < down["qsgd-4bit"] / 15
    drawn = {path.name for path in first.folder.glob("comparisons/*/figures/*")}
    assert {"density.png", "density.pdf", "density.csv"} <= drawn

    second = Command(tmp_path / "second", "run", path, "--algo", "qsgd-4bit", "--json")
    second.finish(170.0)
    sent = payloads(first, "qsgd-4bit")
    assert len(sent) == 2 * STEPS
    assert payloads(second, "qsgd-4bit") == sent
