"""Steps, losses and bytes of one script under several hooks: from records, and the example that makes them."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from runpy import run_path

import pytest
from synthetic_job import Job, make_job

from testbed.process import environment

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.append(str(EXAMPLES))

from hook_report import Trained, report, trained, trained_in  # noqa: E402


def job(
    out: Path, hook: str, seed: int, steps: int = 4, loss: float | None = 2.0, sent_mb: float = 1.0
) -> Path:
    """A run directory of ``testbed exec``, with what the script says at its end, if it came so far."""
    run = make_job(out, Job(label=hook, steps=steps, megabytes=sent_mb))
    manifest = json.loads((run / "manifest.json").read_text())
    command = ["python", "char_ddp_hook.py", hook, "--steps", str(steps), "--seed", str(seed)]
    manifest["algorithm"]["command"] = command
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "log").mkdir(exist_ok=True)
    said = "" if loss is None else f"[0] rank 0: loss {loss} on unseen text\n"
    (run / "log" / "worker-0.log").write_text(f"[0] step 1\n{said}")
    (run / "log" / "worker-1.log").write_text("[0] rank 1: loss 9 on unseen text\n")
    return run


def test_a_job_is_read_from_its_records(tmp_path: Path) -> None:
    run = job(tmp_path, "bf16", 3, loss=1.875)
    summary = json.loads((run / "summary.json").read_text())
    found = trained(run)
    assert found is not None
    assert (found.hook, found.seed, found.steps, found.loss) == ("bf16", 3, 4, 1.875)
    assert (found.step_s, found.verdict) == (summary["step_s"], "valid")


def test_bytes_are_what_nodes_sent_without_the_headers_of_its_packets(tmp_path: Path) -> None:
    run = job(tmp_path, "none", 1)
    nodes = list(json.loads((run / "manifest.json").read_text())["nodes"])
    samples = [
        {"kind": "sample", "link": nodes[0], "direction": "up", "delivered_bits": 8e6, "packets": 1000},
        {"kind": "sample", "link": nodes[0], "direction": "up", "delivered_bits": 8e3, "packets": 0},
        {"kind": "sample", "link": nodes[0], "direction": "down", "delivered_bits": 8e9, "packets": 1},
        {"kind": "change", "link": nodes[0], "direction": "up"},
        {"kind": "sample", "link": nodes[1], "direction": "up", "delivered_bits": 8e5, "packets": 10},
    ]  # fmt: skip
    (run / "links.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples))
    found = trained(run)
    assert found is not None
    others = [0.0] * (len(nodes) - 2)
    assert list(found.sent_bytes) == [1e6 - 66_000 + 1e3, 1e5 - 660, *others]


def test_jobs_that_did_not_end_are_none(tmp_path: Path) -> None:
    assert trained(job(tmp_path, "none", 1, loss=None)) is None
    cut = job(tmp_path, "none", 2)
    (cut / "summary.json").unlink()
    assert trained(cut) is None
    other = job(tmp_path, "none", 3)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["algorithm"]["command"] = ["sleep", "1"]
    (other / "manifest.json").write_text(json.dumps(manifest))
    assert trained(other) is None
    assert trained_in(tmp_path) == []


def test_of_a_job_done_twice_the_last_counts(tmp_path: Path) -> None:
    for loss in (3.0, 1.0, 2.0):
        job(tmp_path, "none", 1, loss=loss)
    job(tmp_path, "none", 1, steps=5, loss=4.0)
    assert {found.steps: found.loss for found in trained_in(tmp_path)} == {4: 2.0, 5: 4.0}


def test_the_report_pairs_by_seed_and_takes_the_longest_runs(tmp_path: Path) -> None:
    size, all_reduce = 1e6, 2 * 3 / 4 * 1e6 * 10

    def made(hook: str, seed: int, step_s: float, loss: float, share: float) -> Trained:
        return Trained(hook, seed, 10, step_s, loss, "valid", (all_reduce * share,) * 4)

    jobs = [
        *(made("none", seed, 0.4 * seed, 2.0, 1.0) for seed in (1, 2, 3)),
        *(made("ours", seed, 0.1 * seed, 2.2, 0.02) for seed in (1, 2)),
        Trained("ours", 1, 5, 99.0, 99.0, "invalid", (1.0,) * 4),
    ]
    none, ours, against = report(jobs, "ours", ["none", "ours"], size)
    assert none.startswith("none: 3 seeds, 10 steps of 0.8 [") and "1.0000–1.0000 of" in none
    assert "2 seeds" in ours and "loss 2.2 [2.2, 2.2]" in ours and "0.0200–0.0200 of" in ours
    assert "99" not in ours and "invalid" not in ours
    (short,) = report(jobs, "ours", ["ours"], size, steps=5)
    assert short.startswith("ours: 1 seeds, 5 steps of 99 s")
    # four times as fast with each seed, though the means of all are of other seeds
    assert against == (
        "ours against none: 4 [4, 4] times as fast per step, 1.1 [1.1, 1.1] of its loss, 2 pairs"
    )


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """All that the example would train, for one seed."""
    example = run_path(str(EXAMPLES / "hook_speed.py"), run_name="example")
    given = Namespace(out=tmp_path)
    timed, fast = (example["folder"](links, given) for links in ("four", "four_fast"))
    for hook, megabytes in zip(example["TIMED"], (2.0, 1.0, 0.1), strict=True):
        job(timed, hook, 1, sent_mb=megabytes)
    for hook in example["LEARNT"]:
        job(fast, hook, 1, steps=6)
    job(fast, example["OURS"], 1)
    job(fast, example["OURS"], 1, steps=9)  # as of an earlier call, with more steps
    return tmp_path


def test_the_example_does_nothing_again_reports_and_draws(recorded: Path) -> None:
    options = ["--seeds", "1", "--timed", "4", "--learnt", "6", "--fabric", "sim"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "hook_speed.py"), *options, "--out", str(recorded)],
        capture_output=True, text=True, timeout=280, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    slow, fast = done.stdout.split("\n1 Gbit/s\n")
    assert slow.lstrip().startswith("100 Mbit/s\nnone: 1 seeds, 4 steps of ")
    assert slow.count("times as fast per step") == 2 and fast.count("of its loss, 1 pairs") == 1
    assert fast.startswith("none: 1 seeds, 6 steps of ")
    assert list(recorded.glob("**/*.png")), "figures of the runs"


def test_what_is_missing_is_begun_and_its_failure_ends_all(
    recorded: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    example = run_path(str(EXAMPLES / "hook_speed.py"), run_name="example")
    given = Namespace(out=recorded, fabric="sim")
    example["train"]("four", "none", 1, 4, given)
    assert capfd.readouterr().err == "", "that one is there"
    # in virtual time there are no jobs
    with pytest.raises(SystemExit) as left:
        example["train"]("four", "none", 2, 4, given)
    assert left.value.code == 2 and "virtual time" in capfd.readouterr().err
