"""``testbed run --fabric sim``: whole runs in virtual time, their records, and what they do not need."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from virtual_run import EVENTS, KILL, PAUSE, SCENARIO, carried_out

from testbed.cli.run import draw
from testbed.errors import ExperimentError, InputError, NodeLost
from testbed.fabric.base import RunContext, fabrics
from testbed.records.run_directory import read_events, read_json, read_jsonl
from testbed.runner import sim_trial
from testbed.runner.comparison import Comparison, recorded
from testbed.runner.experiment import prepare
from testbed.runner.judge import write_verdict
from testbed.runner.progress import Progress
from testbed.runner.run import MOST_REASONS, ParallelTask, reasons_against, run, side_by_side
from testbed.runner.trial import TrialOutcome, TrialPlan


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The directories of one run of each algorithm."""
    runs = carried_out(tmp_path_factory.mktemp("sim")).runs
    return [Path(entry["dir"]) for entry in runs]


def test_a_run_is_valid_and_says_why(made: list[Path]) -> None:
    for directory in made:
        summary = read_json(directory / "summary.json")
        assert summary["verdict"] == "valid"
        assert summary["reasons"] == ["virtual time: links are modelled"]
        assert summary["steps"] == 12
    assert read_json(made[0] / "summary.json")["accuracy"] > 0.3
    manifest = read_json(made[0] / "manifest.json")
    assert manifest["fabric"] == "sim" and manifest["model"]["compute"] == "paced"


def test_records_are_those_of_real_links(made: list[Path]) -> None:
    events = read_events(made[0])
    assert {kind: len(found) for kind, found in events.items()} == {
        "step": 24, "round": 12, "evaluation": 3,
    }  # fmt: skip
    links = list(read_jsonl(made[0] / "links.jsonl"))
    assert {record["kind"] for record in links} == {"sample", "change"}
    changes = [(r["link"], r["direction"], r["due_s"]) for r in links if r["kind"] == "change"]
    assert changes == [("server", "up", 0.6), ("server", "down", 0.6)]
    asked = sum(r["asked_bits"] for r in links if r["kind"] == "sample" and r["link"] == "noise")
    assert asked == pytest.approx(
        2 * 20e6 * read_json(made[0] / "summary.json")["wall_s"], rel=0.02
    )


def test_bytes_on_links_are_those_of_the_frames(made: list[Path]) -> None:
    """Of the worker's link, which carries nothing else: frames, and 66 bytes for every segment."""
    events = read_events(made[0])
    frames = [step["bytes_up"] for step in events["step"] if step["node"] == "worker-0"]
    bits = sum(8 * (size + 66 * -(-size // 1448)) for size in [*frames, 40, 40])
    carried = [
        record["delivered_bits"]
        for record in read_jsonl(made[0] / "links.jsonl")
        if record["kind"] == "sample"
        and (record["link"], record["direction"]) == ("worker-0", "up")
    ]
    assert sum(carried) == pytest.approx(bits - 8 * 106, abs=100)  # the greeting came before t0


def test_steps_are_as_long_as_links_make_them(made: list[Path]) -> None:
    steps = [s for s in read_events(made[0])["step"] if s["node"] == "worker-0"]
    before, after = steps[0], steps[-2]
    assert after["end_s"] - after["start_s"] > 2 * (before["end_s"] - before["start_s"])
    two = 2 * 8 * (after["bytes_up"] + 66 * -(-after["bytes_up"] // 1448))
    slow = 0.1 + 2 * two / 5e6
    # one reply may come a little before the other, and the next gradient then does, too
    assert 0.9 * slow < after["end_s"] - after["start_s"] < 1.02 * slow


def test_cross_traffic_is_recorded_and_felt(made: list[Path]) -> None:
    said = {record["kind"]: record for record in read_jsonl(made[0] / "traffic.jsonl")}
    assert set(said) == {"sent", "received"}
    assert 0 < said["received"]["bytes"] <= 0.3 * 20e6 / 8
    steps = [s for s in read_events(made[0])["step"] if s["node"] == "worker-0"]
    lengths = [step["end_s"] - step["start_s"] for step in steps]
    assert 1.08 * lengths[0] < max(lengths[1:3]) < 2 * lengths[0]


def records(directory: Path) -> dict[str, bytes]:
    """Everything but what tells of time of day, machine and place."""
    found = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in ("manifest.json", "summary.json")
    }
    summary = read_json(directory / "summary.json")
    return {**found, "summary.json": json.dumps({**summary, "dir": ""}).encode()}


def test_the_same_seed_gives_the_same_bytes(made: list[Path], tmp_path: Path) -> None:
    again = [Path(entry["dir"]) for entry in carried_out(tmp_path).runs]
    for first, second in zip(made, again, strict=True):
        assert records(first) == records(second)
    assert {"events/worker-0.jsonl", "links.jsonl", "traffic.jsonl"} <= set(records(again[0]))


def test_another_seed_is_another_run(made: list[Path], tmp_path: Path) -> None:
    (entry,) = carried_out(tmp_path, algorithms=["none"], seeds=[2]).runs
    assert records(Path(entry["dir"])) != records(made[0])


def test_a_paused_worker_holds_up_the_run(made: list[Path], tmp_path: Path) -> None:
    (entry,) = carried_out(
        tmp_path, SCENARIO.replace(EVENTS, EVENTS + PAUSE), algorithms=["none"]
    ).runs
    longer = entry["time_s"] - read_json(made[0] / "summary.json")["time_s"]
    assert entry["verdict"] == "valid" and 1.5 < longer < 2.5


def test_a_killed_worker_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(NodeLost, match=r"'worker-1' was lost at step \d: .* at 0.7 s killed it"):
        carried_out(tmp_path, SCENARIO.replace("traffic:", KILL + "traffic:"), algorithms=["none"])
    (directory,) = (tmp_path / "out" / "runs").iterdir()
    summary = read_json(directory / "summary.json")
    assert summary["verdict"] == "invalid" and summary["steps"] >= 2
    samples = [r for r in read_jsonl(directory / "links.jsonl") if r["kind"] == "sample"]
    assert samples and all(sample["asked_bits"] > 0 for sample in samples)


def test_what_has_no_effect_is_said(tmp_path: Path) -> None:
    text = SCENARIO.replace("congestion: cubic", "congestion: bbr")
    (entry,) = carried_out(tmp_path, text, algorithms=["none"]).runs
    reasons = read_json(Path(entry["dir"]) / "summary.json")["reasons"]
    assert "TCP is modelled as cubic, not as bbr" in reasons


@pytest.mark.parametrize("more", [0, 2])
def test_why_a_run_is_not_valid_is_said_when_it_ends(tmp_path: Path, more: int) -> None:
    reasons = [f"reason {number}" for number in range(MOST_REASONS + more)]
    summary = {"ended": True, "reasons": reasons}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    entry = {"dir": str(tmp_path), "verdict": "degraded"}
    named, rest = reasons[:MOST_REASONS], [f"and {more} more: {tmp_path}/summary.json"]
    assert list(reasons_against(entry)) == [*named, *(rest if more else [])]
    assert list(reasons_against({**entry, "verdict": "valid"})) == []


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """The same runs, side by side."""
    return carried_out(tmp_path_factory.mktemp("beside"), parallel=2)


def test_side_by_side_is_the_same(made: list[Path], beside: Comparison) -> None:
    assert [entry["algorithm"] for entry in beside.runs] == ["none", "topk-0.01"]
    for entry, directory in zip(beside.runs, made, strict=True):
        assert records(Path(entry["dir"])) == records(directory)


def test_what_ended_side_by_side_before_a_kill_is_not_made_again(beside: Comparison) -> None:
    """Killed when both had ended, and before either result was written into the comparison."""
    file = beside.directory / "comparison.json"
    file.write_text(json.dumps({**read_json(file), "runs": [], "took_s": [None, None]}))
    experiment = prepare(beside.directory.parents[2] / "virtual.yaml")
    resumed = recorded(beside.directory).resumed(experiment)
    assert resumed.runs == beside.runs and list(resumed.left()) == []


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_comparison_that_is_moved_meanwhile_gets_its_files(tmp_path: Path, parallel: int) -> None:
    """Somebody puts links to another's file in the place of all that is still to be written."""
    path, precious = tmp_path / "virtual.yaml", tmp_path / "precious"
    path.write_text(SCENARIO)
    precious.write_text("as it was\n")

    def planted(_: object) -> None:
        if (comparisons := tmp_path / "comparisons").exists() and not (tmp_path / "c").exists():
            comparisons.rename(tmp_path / "c")
            (kept,) = (tmp_path / "c").iterdir()
            (comparisons / kept.name).mkdir(parents=True)
            for name in ("table.csv", "comparison.json", "begun.jsonl", "algorithms.csv"):
                (comparisons / kept.name / name).symlink_to(precious)

    experiment = prepare(path, ["none"], [1, 2, 3])
    comparison = run(experiment, "sim", tmp_path, quiet=True, parallel=parallel, over=planted)
    table = draw(comparison, figures=False)
    assert precious.read_text() == "as it was\n"
    assert all((comparison.directory / name).is_symlink() for name in ("table.csv", "begun.jsonl"))
    (kept,) = (tmp_path / "c").iterdir()
    assert len(table) == 3 == len((kept / "table.csv").read_text().splitlines()) - 1
    if parallel > 1:
        assert len(list(read_jsonl(kept / "begun.jsonl"))) == 3


def test_another_run_in_the_place_of_one_is_not_drawn(tmp_path: Path) -> None:
    comparison = carried_out(tmp_path)
    directory = Path(comparison.runs[0]["dir"])
    directory.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", directory)
    with pytest.raises(InputError, match="another folder"):
        draw(comparison, figures=False)


def test_a_link_is_not_followed_to_where_runs_that_begin_are_listed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("as it was\n")
    (tmp_path / "begun.jsonl").symlink_to("precious")
    (tmp_path / "virtual.yaml").write_text(SCENARIO)
    task = ParallelTask(tmp_path / "virtual.yaml", "none", 1, begun=tmp_path / "begun.jsonl")
    with pytest.raises(OSError, match="symbolic links"):
        list(side_by_side([task], tmp_path, 1))
    assert (tmp_path / "precious").read_text() == "as it was\n"


def test_records_that_no_verdict_can_be_made_of_end_in_a_sentence(tmp_path: Path) -> None:
    """What a node has said of its messages has the types of such records, and no meaning."""
    (tmp_path / "virtual.yaml").write_text(SCENARIO)
    experiment = prepare(tmp_path / "virtual.yaml", ["none"], [1])
    plan = TrialPlan.create(experiment, experiment.algorithms[0], 1, tmp_path, Progress(quiet=True))
    plan.directory.event("server", 0, {"kind": "round", "step": 1, "messages": [{"sender": 2.5}]})
    plan.directory.event("server", 0, {"kind": "evaluation"})
    with pytest.raises(ExperimentError, match=r"no verdict can be found .*KeyError: .*\.py:\d+"):
        write_verdict(plan, TrialOutcome())


def test_a_failure_side_by_side_is_told(tmp_path: Path) -> None:
    path = tmp_path / "virtual.yaml"
    path.write_text(SCENARIO.replace("traffic:", KILL + "traffic:"))
    with pytest.raises(ExperimentError, match="'worker-1' was lost at step"):
        run(prepare(path, ["none"]), "sim", tmp_path / "out", quiet=True, parallel=2)
    (comparison,) = (tmp_path / "out" / "comparisons").iterdir()
    assert [e["verdict"] for e in read_json(comparison / "comparison.json")["runs"]] == ["invalid"]


def test_real_runs_are_not_carried_out_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "virtual.yaml"
    path.write_text(SCENARIO)
    command = [sys.executable, "-m", "testbed", "run", str(path), "--fabric", "netns"]
    done = subprocess.run(
        [*command, "--parallel", "2", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "--parallel: trials on the fabric 'netns' share" in done.stderr
    assert not (tmp_path / "comparisons").exists()


def test_many_workers_share_a_model(tmp_path: Path) -> None:
    text = SCENARIO.replace("count: 2}", "count: 40}").replace("batch: 32", "batch: 2")
    text = text.replace("steps: 12", "steps: 6")
    (entry,) = carried_out(tmp_path, text, algorithms=["topk-0.01"]).runs
    events = read_events(Path(entry["dir"]))
    assert entry["verdict"] == "valid" and len(events["step"]) == 6 * 40
    assert len({step["payload_crc"] for step in events["step"] if step["step"] == 1}) == 40
    assert len({epoch["parameters"] for epoch in events.get("epoch", [])}) <= 1


@pytest.mark.parametrize("algorithm", ["none", "topk-0.01"])
def test_without_gradients_the_network_has_as_much_to_do(
    algorithm: str, made: list[Path], tmp_path: Path
) -> None:
    text = SCENARIO.replace("model: mlp", "model: mlp, gradients: none")
    (entry,) = carried_out(tmp_path, text, algorithms=[algorithm]).runs
    real = read_json(made[algorithm != "none"] / "summary.json")
    assert entry["verdict"] == "valid" and entry["accuracy"] is None
    for told in ("bytes_up", "bytes_down", "time_s"):
        assert entry[told] == pytest.approx(real[told], rel=0.1)
    step = read_events(Path(entry["dir"]))["step"][0]
    assert step["loss"] is None and step["size"] == 9610


def test_bytes_are_all_workers_however_few_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's rounds have all messages; a ring has no server, and there all are recorded."""
    text = SCENARIO.replace("model: mlp", "model: mlp, gradients: none")
    text = text.replace("count: 2}", "count: 5}").replace("steps: 12", "steps: 3")
    names = ["none", "ring"]
    whole = carried_out(tmp_path / "all", text, algorithms=names).runs
    monkeypatch.setattr(sim_trial, "_RECORDED", 2)
    fewer = carried_out(tmp_path / "few", text, algorithms=names).runs
    manifests = [read_json(Path(entry["dir"]) / "manifest.json") for entry in fewer]
    assert [found["model"]["recorded_every"] for found in manifests] == [3, 1]
    for key in ("bytes_up", "bytes_down"):
        assert [entry[key] for entry in fewer] == [entry[key] for entry in whole]
        assert all(entry[key] > 0 for entry in fewer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("steps: 12", "epochs: 2"), "neither epochs nor accuracies"),
        (("[none, topk-0.01]", "[adatopk]"), "the controller 'adatopk' needs gradients"),
    ],
)
def test_what_needs_gradients_is_refused(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    text = SCENARIO.replace("model: mlp", "model: mlp, gradients: none").replace(*change)
    with pytest.raises(InputError, match=message):
        carried_out(tmp_path, text)


def test_what_overlaps_needs_to_know_how_long_layers_compute(tmp_path: Path) -> None:
    text = SCENARIO.replace(" pace: 100 ms,", "").replace("[none, topk-0.01]", "[none+overlap]")
    with pytest.raises(InputError, match="whose times nobody knows in virtual time"):
        carried_out(tmp_path, text)


def test_nothing_can_be_replayed_on_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither processes nor links"):
        fabrics.get("sim")(RunContext("x", tmp_path, ""))


ELSEWHERE = """
import importlib.abc, os, sys

LINUX = ("pyroute2", "docker", "prometheus_client", "testbed.links.tc.netlink", "testbed.host.user_namespace",
         "testbed.fabric.netns", "testbed.fabric.host_node", "testbed.runner.session")

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in LINUX):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def look(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "not on this system", arguments[0])

sys.meta_path.insert(0, Refuse())
for name in ("setns", "unshare", "sched_getaffinity", "sched_setaffinity", "sched_setscheduler",
             "pidfd_open", "memfd_create", "O_PATH"):
    if hasattr(os, name):
        delattr(os, name)
sys.addaudithook(look)
from testbed.cli import main
main(sys.argv[1:])
"""


def test_it_needs_nothing_that_only_linux_has(tmp_path: Path) -> None:
    (tmp_path / "virtual.yaml").write_text(SCENARIO)
    command = ["run", str(tmp_path / "virtual.yaml"), "--fabric", "sim", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *command, "--json", "--quiet", "--no-figures"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [entry["verdict"] for entry in json.loads(done.stdout)["runs"]] == ["valid", "valid"]


MACHINE = """
name: machine
nodes: {server: {role: server}, worker: {role: worker, count: 3}}
links:
  default: {up: {rate: 20 Mbit/s, queue: 50 ms}, down: {rate: 20 Mbit/s, queue: 50 ms}}
  server: {up: {rate: 10 Gbit/s, queue: 1 ms}, down: {rate: 10 Gbit/s, queue: 1 ms}}
  worker-0: {up: {rate: 10 Gbit/s, queue: 1 ms}, down: {rate: 10 Gbit/s, queue: 1 ms}}
racks:
  machine:
    members: [server, worker-0]
    up: {rate: 20 Mbit/s, queue: 50 ms}
    down: {rate: 20 Mbit/s, queue: 50 ms}
train: {task: digits, model: mlp, batch: 32, optimizer: {name: sgd, lr: 0.1}, pace: 100 ms,
  stop: {steps: 4}, evaluate_every: 4}
algorithms: [none]
"""


def test_a_server_on_a_workers_machine_shares_its_link(tmp_path: Path) -> None:
    """As docs/reference/topology.md has it: its worker is at hand, the others share the link."""
    directory = Path(carried_out(tmp_path, MACHINE).runs[0]["dir"])
    rounds = read_events(directory)["round"]
    assert len(rounds) == 4
    for event in rounds:
        both = {m["sender"]: (m["last_s"] - m["sent_s"], m["bytes"]) for m in event["messages"]}
        (own_s, size), *others = (both[sender] for sender in sorted(both))
        alone_s = size * 8 / 20e6
        assert own_s < 0.1 * alone_s
        assert max(took_s for took_s, _ in others) > 1.9 * alone_s, "two messages, one link"
