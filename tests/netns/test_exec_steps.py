"""Steps of a job on real links: what the links' traffic shows is what the job marked."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
from command_rig import Command

from testbed.records.inferred_steps import infer
from testbed.records.job_steps import job_steps, marked_steps
from testbed.records.link_log import LinkTraffic
from testbed.records.run_directory import LINKS, read_events, read_json, read_jsonl

pytestmark = [pytest.mark.timed, pytest.mark.judged, pytest.mark.timeout(240)]
STEPS = 16
SCENARIO = """
name: some-steps
nodes: {worker: {role: worker, count: 2}}
links:
  default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}
events:
  - {kind: step, at: 2500 ms, links: [worker-1], direction: both, rate: 15 Mbit/s}
congestion: cubic
"""
SCRIPT = f"""
import time
import torch
import torch.distributed as dist
from testbed import mark
dist.init_process_group("gloo")
values = torch.ones(125_000)
mark.begin()
for number in range({STEPS}):
    mark.phase("compute")
    time.sleep(0.25)
    mark.phase("exchange")
    dist.all_reduce(values)
    mark.step(loss=1 / (number + 1))
dist.destroy_process_group()
"""


def test_inferred_steps_are_those_that_were_marked(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    (tmp_path / "job.py").write_text(SCRIPT)
    arguments = ["exec", str(tmp_path / "scenario.yaml"), "--await-begin", "--name", "some"]
    command = Command(tmp_path, *arguments, "--", "python", str(tmp_path / "job.py"))
    command.accept(120.0)
    (directory,) = command.runs()
    summary, events = read_json(directory / "summary.json"), read_events(directory)
    assert (summary["steps"], summary["steps_by"]) == (STEPS, "marks")
    marked = [step.end_s for step in job_steps(marked_steps(events["mark"]))]
    found = infer(LinkTraffic(read_jsonl(directory / LINKS)))
    # One pause of sixteen may come elsewhere: the processors have others to serve.
    assert found.confidence is not None and found.confidence >= 0.9, found.reason
    assert len(found.ends_s) - 1 in range(STEPS - 3, STEPS + 1)
    off_s = [min(abs(at - end) for end in [0.0, *marked]) for at in found.ends_s]
    assert median(off_s) < 0.1
    assert any(record.get("looks") for record in read_jsonl(directory / LINKS))
