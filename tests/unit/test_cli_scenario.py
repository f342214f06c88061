"""`testbed init`, `validate` and `plan`: what they print, and that wrong input is exit code 2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest
from command_here import call

from testbed.errors import InputError
from testbed.fidelity.evidence import State
from testbed.fidelity.verdict import Verdict
from testbed.links.agent.client import LinkReport
from testbed.links.capabilities import Capabilities
from testbed.runner import preflight
from testbed.runner.link_replay import ReplayedLinks
from testbed.scenario import load
from testbed.scenario.yaml import parse

ROOT = Path(__file__).parents[2]
DEMO = str(ROOT / "scenarios" / "demo.yaml")
LOSSY = str(ROOT / "scenarios" / "lossy.yaml")
CONGESTION = str(ROOT / "scenarios" / "congestion.yaml")


def output(*arguments: str) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.exception
    return result.stdout


def test_init_writes_a_scenario_that_is_valid(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    written = output("init", str(folder)).split()
    assert written == [str(folder / "scenario.yaml"), str(folder / "traces" / "cloud.csv")]
    assert "valid; 1 server, 4 workers, 1 event, 1 trace" in output("validate", written[0])
    data = parse(Path(written[0]).read_text(), "s").data
    jsonschema.validate(data, json.loads(load.text()))


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "cloud.csv").write_text("mine")
    result = call("init", str(tmp_path))
    assert isinstance(result.exception, InputError)
    assert result.exception.exit_code == 2
    assert "there is such a file already" in str(result.exception)
    assert not (tmp_path / "scenario.yaml").exists()
    assert (tmp_path / "traces" / "cloud.csv").read_text() == "mine"


def test_init_into_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert isinstance(call("init", str(tmp_path / "file")).exception, InputError)


def test_validate_prints_json_alone() -> None:
    found = json.loads(output("validate", DEMO, "--json"))
    assert found["valid"] is True
    assert found["workers"] == 4
    assert found["algorithms"] == ["none", "topk-0.15", "adatopk", "adalag-w1"]
    assert found["needs"] == []


def test_validate_lists_what_a_kernel_must_have(tmp_path: Path) -> None:
    text = Path(CONGESTION).read_text().replace("rate: 40 Mbit/s", "rate: 40 Mbit/s, loss: 0.01")
    (tmp_path / "lossy.yaml").write_text(text)
    assert "needs netem (slow-0 up and 1 more: loss)" in output(
        "validate", str(tmp_path / "lossy.yaml")
    )


@pytest.mark.parametrize("verb", ["validate", "plan"])
def test_wrong_input_is_a_sentence_and_exit_code_2(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: x\nnodez: {}\n")
    error = call(verb, str(path)).exception
    assert isinstance(error, InputError)
    assert error.exit_code == 2
    assert f"{path}:2: nodez: unknown key 'nodez': did you mean 'nodes'?" in str(error)


def test_plan_shows_history_commands_and_arithmetic() -> None:
    text = output("plan", CONGESTION)
    assert "congestion: 5 nodes (server, fast-0, fast-1, slow-0, slow-1) on netns" in text
    assert "outage" in text
    assert "shortest time between two changes 200 ms" in text
    assert "longest outage 500 ms" in text
    assert "tc class add dev slow-1-nic parent" in text
    assert "rate 20000000bit" in text
    assert "communicating" in text


def test_plan_as_json_has_the_whole_history() -> None:
    found: dict[str, Any] = json.loads(output("plan", CONGESTION, "--json", "--seconds", "20"))
    assert [node["peer"] for node in found["nodes"]] == [0, 1, 2, 3, 4]
    assert len(found["links"]) == 10
    server = [c for c in found["changes"] if (c["link"], c["direction"]) == ("server", "down")]
    assert [(c["time_s"], c["rate_bits"]) for c in server[:3]] == [
        (5.0, 20_000_000),
        (10.0, 0),
        (10.5, 20_000_000),
    ]
    assert server[-1]["rate_bits"] == 100_000_000
    assert found["compose"] is None
    step = found["dense_step"]
    assert step["step_s"] == pytest.approx(step["pace_s"] + step["up_s"] + step["down_s"])
    assert step["frame_bytes"] > 4 * step["parameters"]


def test_plan_says_where_it_counts_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ("plan", LOSSY, "--seconds", "30")
    whole = json.loads(output(*plan, "--json"))
    changes, bursts = len(whole["changes"]), len(whole["traffic"][1]["bursts"])
    assert changes > 1 and bursts > 1
    assert whole["changes_left_out"] is whole["traffic"][1]["bursts_left_out"] is False
    for most, said in (
        (changes, f"Changes in the first 30 s: {changes}\n"),
        (changes - 1, f"Changes in the first 30 s: more than {changes - 1}\n"),
        (bursts - 1, f", more than {bursts - 1} bursts in 30 s"),
    ):
        monkeypatch.setattr("testbed.cli.plan.MAX_CHANGES", most)
        assert said in output(*plan)


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300"])
def test_plan_looks_into_no_history_without_end(seconds: str) -> None:
    result = call("plan", DEMO, "--seconds", seconds)
    assert result.exit_code == 2 or isinstance(result.exception, InputError)


def test_plan_for_docker_has_the_compose_file() -> None:
    text = json.loads(output("plan", DEMO, "--json", "--fabric", "docker"))["compose"]
    services = parse(text, "compose.yaml").data["services"]
    assert set(services) >= {"server", "worker-0", "worker-3"}


def test_plan_refuses_what_a_run_on_a_swarm_refuses(tmp_path: Path) -> None:
    """In the same words, and before there is a directory."""
    path = tmp_path / "multicast.yaml"
    path.write_text(
        "name: m\nnodes: {worker: {role: worker, count: 3}}\n"
        "links: {default: {up: {rate: 9 Mbit/s, queue: 50 ms}, down: {rate: 9 Mbit/s, queue: 50 ms}}}\n"
        "algorithms: [ssgd-multicast]\n"
    )
    options = (str(path), "--fabric", "swarm")
    planned = call("plan", *options).exception
    assert isinstance(planned, InputError)
    assert "multicasts are not possible on a swarm" in str(planned)
    run = call("run", *options, "--out", str(tmp_path)).exception
    assert (type(run), str(run)) == (InputError, str(planned))
    assert [*tmp_path.iterdir()] == [path]
    output("plan", str(path), "--fabric", "docker")


def test_plan_shows_racks_traffic_and_impairments(tmp_path: Path) -> None:
    text = output("plan", LOSSY)
    assert "rack there: worker-2, worker-3, noise-1" in text
    assert "traffic video: udp at 20.000 Mbit/s from noise-0 to noise-1, 0.000 s to the end" in text
    assert "loss 0.199 % in bursts of 4 packets" in " ".join(text.split())
    killed = "  - {kind: kill, nodes: [noise-0], at: 13 s, restart_after: 1 s}\ntraffic:"
    path = tmp_path / "killed.yaml"
    path.write_text(Path(LOSSY).read_text().replace("traffic:", killed))
    assert "after 14.000 s: restart noise-0" in output("plan", str(path))
    found = json.loads(output("plan", LOSSY, "--json"))
    assert found["racks"]["there"] == ["worker-2", "worker-3", "noise-1"]
    commands = {(link["link"], link["direction"]): link["tc"] for link in found["links"]}
    bundles = {key for key, lines in commands.items() if "gso_max_segs" in lines[0]}
    assert bundles == {(node["name"], "up") for node in found["nodes"]}
    congested = json.loads(output("plan", CONGESTION, "--json"))
    assert "congctl cubic" in congested["links"][0]["tc"][1]
    assert found["traffic"][0]["bursts"] == [[3.0, 13.0]]
    later = next(c for c in found["changes"] if c["link"] == "there")
    assert (later["time_s"], later["impairments"]) == (5.0, {"delay_ns": 15_000_000})
    assert "2 hosts, 2 racks, 2 flows, 3 events" in output("validate", LOSSY)


def test_a_rack_can_be_the_slowest_part_of_a_step(tmp_path: Path) -> None:
    def step(rate: str) -> Any:
        path = tmp_path / "rack.yaml"
        path.write_text(Path(LOSSY).read_text().replace("150 Mbit/s", rate))
        return json.loads(output("plan", str(path), "--json"))["dense_step"]

    wide, narrow = step("1 Gbit/s"), step("10 Mbit/s")
    bits = narrow["frame_bytes"] * 8
    assert wide["up_s"] == pytest.approx(4 * bits / 100e6, rel=0.06)  # the server's own link
    assert narrow["up_s"] == pytest.approx(2 * bits / 10e6, rel=0.06)  # two workers' rack
    assert narrow["down_s"] == pytest.approx(2 * bits / 10e6, rel=0.06)


@pytest.mark.parametrize(
    ("members", "gradients"),
    [
        (["worker-1", "worker-2", "worker-3"], 3),
        (["server", "worker-0"], 3),
        (["worker-0"], 1),
        (["server", "worker-0", "worker-1", "worker-2", "worker-3"], 0),
    ],
)
def test_a_racks_link_carries_what_crosses_it(
    tmp_path: Path, members: list[str], gradients: int
) -> None:
    """Where nothing does, the server's own link is the slowest."""
    path, slow = tmp_path / "rack.yaml", "{rate: 10 Mbit/s, queue: 50 ms}"
    fast = "{rate: 100 Mbit/s, queue: 50 ms}"
    path.write_text(
        "name: rack\nnodes: {server: {role: server}, worker: {role: worker, count: 4}}\n"
        f"racks: {{far: {{members: [{', '.join(members)}], up: {slow}, down: {slow}}}}}\n"
        f"links: {{default: {{up: {fast}, down: {fast}}}}}\nalgorithms: [none]\n"
    )
    step = json.loads(output("plan", str(path), "--json"))["dense_step"]
    seconds = step["frame_bytes"] * 8 * (gradients / 10e6 if gradients else 4 / 100e6)
    assert [step["up_s"], step["down_s"]] == pytest.approx([seconds] * 2, rel=0.06)


def test_servers_share_what_workers_send(tmp_path: Path) -> None:
    path, end = tmp_path / "servers.yaml", "{rate: 100 Mbit/s, queue: 50 ms}"
    path.write_text(
        "name: two\nnodes: {server: {role: server, count: 2}, worker: {role: worker, count: 6}}\n"
        f"links: {{default: {{up: {end}, down: {end}}}}}\nalgorithms: [none]\n"
    )
    step = json.loads(output("plan", str(path), "--json"))["dense_step"]
    seconds = 3 * step["frame_bytes"] * 8 / 100e6
    assert [step["up_s"], step["down_s"]] == pytest.approx([seconds] * 2, rel=0.06)


@pytest.mark.parametrize(
    ("participation", "members", "rate", "up", "down"),
    [
        ("{workers: 2}", ["worker-0"], 100e6, 2, 4),
        ("{share: 0.25}", ["worker-0"], 100e6, 1, 4),
        ("{workers: 2}", ["worker-1", "worker-2", "worker-3"], 10e6, 2, 3),
        ("{workers: 2}", ["server", "worker-0"], 10e6, 2, 3),
        ("{workers: 4}", ["worker-1", "worker-2", "worker-3"], 10e6, 3, 3),
    ],
)
def test_workers_that_rest_send_nothing_and_get_the_reply(
    tmp_path: Path, participation: str, members: list[str], rate: float, up: int, down: int
) -> None:
    """At ``rate``, that of a rack or of the server's link, in bit/s, so many gradients each way."""
    path, end = tmp_path / "rest.yaml", "{rate: 100 Mbit/s, queue: 50 ms}"
    rack = f"{{rate: {rate / 1e6:g} Mbit/s, queue: 50 ms}}"
    path.write_text(
        "name: rest\nnodes: {server: {role: server}, worker: {role: worker, count: 4}}\n"
        f"racks: {{far: {{members: [{', '.join(members)}], up: {rack}, down: {rack}}}}}\n"
        f"links: {{default: {{up: {end}, down: {end}}}}}\nalgorithms: [none]\n"
        f"train: {{participation: {participation}}}\n"
    )
    step = json.loads(output("plan", str(path), "--json"))["dense_step"]
    seconds = [count * step["frame_bytes"] * 8 / rate for count in (up, down)]
    assert [step["up_s"], step["down_s"]] == pytest.approx(seconds, rel=0.06)


def test_mean_rates_are_of_a_whole_stretched_trace(tmp_path: Path) -> None:
    """A tenth of it is at 10 Mbit/s: the first minute."""
    path, end = tmp_path / "stretched.yaml", "{rate: 100 Mbit/s, queue: 50 ms}"
    (tmp_path / "t.csv").write_text("# duration_s: 60\ntime_s,rate_mbit_s\n0,10\n6,100\n")
    path.write_text(
        "name: stretched\nnodes: {server: {role: server}, worker: {role: worker, count: 2}}\n"
        f"links: {{default: {{up: {end}, down: {end}}}}}\nalgorithms: [none]\n"
        "events: [{kind: trace, links: [server], file: t.csv, at_end: hold, stretch: 10}]\n"
        "train: {stop: {steps: 1000000}}\n"
    )
    step = json.loads(output("plan", str(path), "--json"))["dense_step"]
    seconds = 2 * step["frame_bytes"] * 8 / 91e6
    assert [step["up_s"], step["down_s"]] == pytest.approx([seconds] * 2, rel=0.06)


@pytest.mark.parametrize("dilation", [1, 4])
def test_a_step_is_estimated_at_the_rates_of_the_run_itself(tmp_path: Path, dilation: int) -> None:
    """The server's link is slow for 15 s, 5 s of it an outage; there and back it is 20 ms."""
    path, end = tmp_path / "short.yaml", "{rate: 100 Mbit/s, queue: 50 ms, delay: 5 ms}"
    path.write_text(
        "name: short\nnodes: {server: {role: server}, worker: {role: worker, count: 2}}\n"
        f"links: {{default: {{up: {end}, down: {end}}}, server: {{up: {{rate: 10 Mbit/s}}}}}}\n"
        "events:\n  - {kind: outage, links: [server], direction: up, at: 0 s, for: 5 s}\n"
        "  - {kind: step, links: [server], direction: up, at: 15 s, rate: 100 Mbit/s}\n"
        f"algorithms: [none]\ndilation: {dilation}\ntrain: {{pace: 50 ms, stop: {{steps: 20}}}}\n"
    )
    step = json.loads(output("plan", str(path), "--json"))["dense_step"]
    assert step["trip_s"] == pytest.approx(0.02)
    parts = [step[f"{part}_s"] for part in ("up", "down", "pace", "trip")]
    assert step["step_s"] == pytest.approx(sum(parts))
    assert step["over_s"] == pytest.approx(20 * step["step_s"], rel=0.05)
    assert 5.0 < step["over_s"] < 15.0
    mean_bits = 10e6 * (step["over_s"] - 5.0) / step["over_s"]
    assert step["down_s"] == pytest.approx(2 * step["frame_bytes"] * 8 / mean_bits, rel=0.06)
    shown = output("plan", str(path))
    assert f"at the mean rates of the first {step['over_s']:.3g} s" in shown
    assert " ms down, 20.0 ms on the way, " in shown


def test_a_link_that_carries_nothing_at_first_has_no_step_at_mean_rates(tmp_path: Path) -> None:
    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    path, end = tmp_path / "dead.yaml", "{rate: 100 Mbit/s, queue: 50 ms}"
    path.write_text(
        "name: dead\nnodes: {server: {role: server}, worker: {role: worker, count: 2}}\n"
        f"links: {{default: {{up: {end}, down: {end}}}}}\nalgorithms: [none]\n"
        "events: [{kind: outage, links: [server], direction: down, at: 0 s, for: 70 s}]\n"
        "peer_timeout: 2 min\n"
    )
    step = json.loads(output("plan", str(path), "--json"), parse_constant=refused)["dense_step"]
    assert [step[key] for key in ("up_s", "step_s", "communicating")] == [None] * 3
    seconds = 2 * step["frame_bytes"] * 8 / 100e6
    assert step["down_s"] == pytest.approx(seconds, rel=0.06)
    shown = output("plan", str(path))
    assert f"{step['frame_bytes']} B a message; no step at mean rates: a link carries" in shown
    assert "inf ms" not in shown


def test_plan_says_how_long_bundles_may_become_where_a_run_would_measure(tmp_path: Path) -> None:
    def told(rate: str) -> tuple[list[int], bool]:
        path = tmp_path / "rates.yaml"
        end = f"{{rate: {rate}, queue: 50 ms}}"
        path.write_text(
            "name: rates\nnodes: {server: {role: server}, worker: {role: worker, count: 2}}\n"
            f"links: {{default: {{up: {end}, down: {end}}}}}\nalgorithms: [none]\n"
        )
        bundles = json.loads(output("plan", str(path), "--json"))["bundle_packets"]
        return bundles, f"gso_max_segs {bundles[0]}; up to" in output("plan", str(path))

    assert told("50 Mbit/s") == ([1], False), "slow links are not measured"
    assert told("100 Mbit/s") == ([2, 4, 8], True)


def test_plan_in_dilated_time(tmp_path: Path) -> None:
    text = Path(CONGESTION).read_text()
    (tmp_path / "slow.yaml").write_text(text + "dilation: 10\n")
    slow = json.loads(output("plan", str(tmp_path / "slow.yaml"), "--json"))
    plain = json.loads(output("plan", CONGESTION, "--json"))
    assert slow["changes"][0]["time_s"] == 10 * plain["changes"][0]["time_s"]
    assert slow["links"][0]["rate_bits"] * 10 == plain["links"][0]["rate_bits"]
    assert slow["links"][0]["queue_bytes"] == plain["links"][0]["queue_bytes"]
    assert slow["dense_step"]["step_s"] == pytest.approx(plain["dense_step"]["step_s"])


def test_plan_knows_the_fabrics() -> None:
    error = call("plan", DEMO, "--fabric", "dokcer").exception
    assert isinstance(error, InputError)
    assert "Known: docker, netns" in str(error)


def test_plan_works_where_torch_docker_and_netlink_are_missing() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'docker', 'pyroute2'): sys.modules[name] = None\n"
        "from pathlib import Path; from testbed.cli.plan import plan\n"
        f"plan(Path({DEMO!r}), 'docker', as_json=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["dense_step"] is None


class Done:
    """Stands for a comparison that has been carried out."""

    runs: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, folder: Path, *, failed: bool) -> None:
        self.directory, self.failed = folder, failed


@pytest.mark.parametrize("verb", ["run", "compare"])
@pytest.mark.parametrize("failed", [False, True])
def test_an_invalid_run_is_exit_code_1_after_its_results_were_shown(
    verb: str, failed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing was wrong with the command: scripts must not take it for a result."""
    shown: list[Any] = []
    monkeypatch.setattr("testbed.runner.run.run", lambda *_, **__: Done(tmp_path, failed=failed))
    monkeypatch.setattr("testbed.cli.run.present", lambda comparison, *_, **__: shown.append(comparison))  # fmt: skip
    monkeypatch.setattr("testbed.cli.run._present_compared", lambda comparison, *_, **__: shown.append(comparison))  # fmt: skip
    result = call(verb, DEMO, "--fabric", "sim", "--out", str(tmp_path))
    assert result.exit_code == int(failed)
    assert [done.failed for done in shown] == [failed]


@pytest.mark.parametrize(("state", "code"), [("valid", 0), ("degraded", 0), ("invalid", 1)])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_replay_that_is_invalid_is_exit_code_1(
    state: State, code: int, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its reasons in either form."""
    verdict = Verdict(state, [] if state == "valid" else ["server down came 70 ms late"])
    replayed = ReplayedLinks(tmp_path, verdict, LinkReport(()), [])
    monkeypatch.setattr("testbed.runner.link_replay.replay", lambda *_, **__: replayed)
    monkeypatch.setattr("testbed.host.user_namespace.become_able", lambda *_, **__: None)
    result = call("replay", DEMO, "--no-figures", *(["--json"] if as_json else []))
    assert result.exit_code == code
    assert ("70 ms late" in result.output) == (state != "valid")


def _changed(tmp_path: Path, old: str, new: str) -> str:
    """The path of the demonstration with other words in it."""
    path = tmp_path / "changed.yaml"
    text = Path(DEMO).read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return str(path)


@pytest.mark.parametrize("data", ["", "\n  data: of-tasks"])
def test_data_that_are_not_there_are_named_before_any_node_starts(
    tmp_path: Path, data: str
) -> None:
    (tmp_path / "of-tasks").mkdir()
    path = _changed(tmp_path, "task: digits", f"task: cifar10{data}")
    number = Path(path).read_text()[: Path(path).read_text().index("task:")].count("\n") + 1
    error = call("run", path, "--fabric", "sim", "--out", tmp_path / "out").exception
    assert isinstance(error, InputError)
    where = f"{path}:{number + 1 if data else number - 1}: train.data: task 'cifar10' needs"
    assert str(error).startswith(where)
    folder = tmp_path / "of-tasks" if data else "DIR"
    assert f"`testbed data fetch cifar10 --data {folder}`" in str(error)
    assert not (tmp_path / "out").exists()
    for verb in ("validate", "plan"):
        assert f"note: {error}" in output(verb, path)
    assert "note: " not in output("validate", path, "--exec")


@pytest.mark.parametrize("verb", ["validate", "plan"])
def test_what_real_links_lack_here_is_a_note(tmp_path: Path, verb: str) -> None:
    path = _changed(tmp_path, "congestion: cubic", "congestion: bbrr")
    lacking = "on real links here: this kernel does not offer the congestion control 'bbrr'"
    assert f"note: {lacking}" in output(verb, path)
    (note,) = json.loads(output(verb, path, "--json"))["notes"]
    assert note.startswith(lacking)


def test_virtual_time_lacks_no_part_of_a_kernel(tmp_path: Path) -> None:
    path = _changed(tmp_path, "congestion: cubic", "congestion: bbrr")
    assert "note: " not in output("plan", path, "--fabric", "sim")


def test_a_kernel_without_netem_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    able = Capabilities(frozenset(), False, ("cubic",), "6.1", True)
    monkeypatch.setattr(preflight, "probe", lambda: able)
    monkeypatch.setattr(preflight.user_namespace, "try_out", lambda: able)
    assert "note: on real links here: kernel 6.1 lacks netem (" in output("validate", LOSSY)
    able = Capabilities(frozenset(), False, (), "6.1", False)
    assert "note: " not in output("validate", LOSSY)  # this user may not find out
