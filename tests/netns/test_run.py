"""``testbed run`` and ``replay`` as a user runs them: real processes in namespaces."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_rig import (
    Command,
    Write,
    addresses,
    families_total,
    ours,
)
from training_run import ALGORITHMS, NODES, STEPS, Run, Trained, printed, write

from testbed.records.exporter import LINK_RATE

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
LIMITED = """
from testbed.runner import signals as lock
lock.CORES_PER_RUN = {cores}
from testbed.cli import main
main()
"""
"""Runs wait for each other where there are fewer cores."""


@pytest.mark.judged
def test_a_run_prints_its_json_and_leaves_its_records(trained: Trained) -> None:
    assert tuple(trained.runs) == ALGORITHMS
    for run in trained.runs.values():
        assert set(run.entry) == {
            "dir", "algorithm", "seed", "verdict", "time_s", "steps", "accuracy", "bytes_up",
            "bytes_down", "mean_k",
        }  # fmt: skip
        assert run.entry["verdict"] == run.summary["verdict"]
        assert run.entry["steps"] == STEPS and run.entry["accuracy"] > 0.3
        for measure in ("byte_identity", "frame_identity"):
            assert run.summary["measures"][measure]["state"] == "valid", run.summary["reasons"]
        assert run.manifest["congestion"] == "cubic" and run.manifest["fabric"] == "netns"
        assert {(link["link"], link["direction"]) for link in run.manifest["links"]} == {
            (node, way) for node in NODES for way in ("up", "down")
        }
    figures = {path.suffix for path in trained.folder.glob("comparisons/*/figures/*")}
    assert figures == {".png", ".pdf", ".csv"}
    directory = trained.runs["adatopk"].entry["dir"]
    replayed = subprocess.run(
        [sys.executable, "-m", "testbed", "replay-controller", directory], check=False
    )
    assert replayed.returncode == 0
    assert trained.left == set()


@pytest.mark.judged
def test_every_node_answers_a_scrape_and_the_incast_queue_is_seen(trained: Trained) -> None:
    for name, families in trained.scraped.items():
        labels = families["testbed_steps"].samples[0].labels
        assert (labels["node"], labels["algorithm"]) == (name, "none")
    worker = families_total(trained.scraped["worker-0"], "testbed_frame_bytes", direction="up")
    sent = sum(step["bytes_up"] for step in trained.runs["none"].records("step", "worker-0"))
    assert 0.5 * sent < worker < sent
    waited = families_total(trained.scraped["worker-0"], "testbed_phase_seconds", phase="wait")
    assert waited > 0
    asked = families_total(trained.scraped["server"], LINK_RATE, source="asked", direction="down")
    assert asked == pytest.approx(20e6 / 8, rel=0.01)
    incast = [
        sample["backlog_bytes"]
        for sample in trained.runs["none"].samples()
        if (sample["link"], sample["direction"]) == ("server", "down")
    ]
    assert max(incast) > 5_000


def limited(folder: Path, cores: int, *arguments: str) -> Command:
    """A command on a machine with fewer cores than ``cores``, or at least so many."""
    return Command(folder, *arguments, program=LIMITED.format(cores=cores))


@pytest.mark.judged
def test_runs_wait_for_each_other_and_send_the_same_payloads(
    tmp_path: Path, trained: Trained, nothing_left: set[str]
) -> None:
    path = write(tmp_path, 8, ["qsgd-4bit"])
    both = [limited(tmp_path / name, 10_000, "run", path, "--json") for name in ("one", "two")]
    ended = [command.accept(170.0) for command in both]
    assert sum("another run has this machine" in err for _, err in ended) == 1
    numbers = [command.process.pid for command in both]
    assert any(
        f"waiting for process {number} of user" in err for number in numbers for _, err in ended
    )
    runs = [printed(out)["qsgd-4bit"] for out, _ in ended]
    first, second = sorted(runs, key=began_s)
    assert began_s(second) > ended_s(first)
    expected = {key: crc for key, crc in trained.runs["qsgd-4bit"].payloads().items() if key[1] < 9}
    assert len(expected) == 16
    for run in runs:
        assert run.payloads() == expected


def control_addresses(command: Command) -> list[str]:
    """Of its nodes."""
    found = [re.search(r"([\d.]+)/\d+ .*control", addresses(command.node(n))) for n in NODES]
    return [match[1] for match in found if match is not None]


def began_s(run: Run) -> float:
    """When the manifest was written, right before t0."""
    return (run.directory / "manifest.json").stat().st_mtime


def ended_s(run: Run) -> float:
    """When the last of its nodes recorded something."""
    return max(path.stat().st_mtime for path in run.directory.glob("events/*"))


def test_a_machine_that_is_big_enough_runs_two_at_once(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    path = scenario(steps=2000)
    both = [limited(tmp_path / name, 1, "run", path) for name in ("one", "two")]
    for command in both:
        command.until(lambda command=command: len(command.steps()) > 2)
    made = {name for name in ours() - nothing_left if re.fullmatch(r"nw-\w+-switch", name)}
    assert len(made) == 2
    for netns in made:
        tag = netns.split("-")[1]
        assert {f"nw-{tag}-{node}" for node in NODES} <= ours()
    addresses = [set(control_addresses(command)) for command in both]
    assert len(addresses[0]) == len(addresses[1]) == len(NODES)
    assert not addresses[0] & addresses[1]
    before = [len(command.steps()) for command in both]
    for command, steps in zip(both, before, strict=True):
        command.until(lambda command=command, steps=steps: len(command.steps()) > steps + 2)
    for command in both:
        command.process.terminate()
        code, _, err = command.finish(60.0)
        assert code == 1 and "interrupted" in err and "another run" not in err
