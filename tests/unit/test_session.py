"""The session's own parts: the control network, causes of failure, seeds."""

import errno
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.errors import ExperimentError, InputError, Interrupted, NodeLost
from testbed.fabric.base import RunContext
from testbed.runner import node_events, real_links
from testbed.runner.control_channel import ControlServer, JsonLines
from testbed.runner.experiment import parse_seeds, prepare
from testbed.runner.judge import faults
from testbed.runner.node_events import HostWatch, Reading
from testbed.runner.progress import Progress
from testbed.runner.session import LostWorkerBudget, Session
from testbed.runner.signals import Failures, interruptible, shielded
from testbed.runner.trial import LinkTrial, TrialOutcome, TrialPlan

ROOT = Path(__file__).parents[2]


@pytest.fixture
def control() -> Iterator[tuple[ControlServer, int]]:
    server = ControlServer("127.0.0.1", 0, "secret", ["worker-0"])
    yield server, int(server._listener.getsockname()[1])
    server.close()


def call(port: int, token: str = "secret", name: str = "worker-0") -> JsonLines:
    lines = JsonLines(socket.create_connection(("127.0.0.1", port)))
    lines.send("hello", node=name, token=token)
    return lines


def test_a_node_is_heard_and_answered(control: tuple[ControlServer, int]) -> None:
    server, port = control
    lines = call(port)
    lines.send("event", event={"kind": "note", "step": 3})
    received = [server.receive(60.0), server.receive(60.0)]
    assert [item and item[1]["type"] for item in received] == ["hello", "event"]
    assert server.connected() == ["worker-0"]
    server.send("worker-0", "start", t0_ns=17)
    assert next(iter(lines)) == {"type": "start", "t0_ns": 17}
    lines.close()


def test_a_closed_connection_is_the_loss_of_that_node(control: tuple[ControlServer, int]) -> None:
    server, port = control
    lines = call(port)
    server.receive(60.0)
    lines.close()
    with pytest.raises(NodeLost, match="'worker-0'"):
        server.receive(60.0)


def test_how_a_node_ended_is_waited_for(control: tuple[ControlServer, int], tmp_path: Path) -> None:
    """Its connection closes some time before the fabric can say how it ended."""
    server, port = control
    lines = call(port)
    server.receive(60.0)
    ending = subprocess.Popen(["sh", "-c", "sleep 1.5; kill -9 $$"])

    def dead() -> dict[str, str]:
        return {} if (code := ending.poll()) is None else {"worker-0": f"killed by signal {-code}"}

    session: Any = object.__new__(Session)
    session.control, session.killed = server, {}
    session.context = RunContext("run", tmp_path, "token")
    session.lost_worker_budget, session._looked = LostWorkerBudget(), 0.0
    session.fabric = SimpleNamespace(dead=dead, agent=SimpleNamespace(alive=lambda: True))
    lines.close()
    with pytest.raises(NodeLost, match="killed by signal 9"):
        next(session.messages(60.0))
    assert ending.wait() == -signal.SIGKILL


def test_strangers_are_shown_the_door(control: tuple[ControlServer, int]) -> None:
    server, port = control
    deep = b"[" * 200_000 + b"\n"
    for lines in (
        call(port, token="gu\u00e9ss"),
        call(port, name="intruder"),
        JsonLines(socket.create_connection(("127.0.0.1", port))),
    ):
        if not lines.socket.getpeername():
            raise AssertionError
        lines.socket.sendall(deep)
        lines.socket.settimeout(60.0)
        assert list(lines) == []
        lines.close()
    assert server.connected() == []


def test_the_cause_outranks_its_consequences() -> None:
    hearsay = Failures.reported(
        "worker-1", {"message": "peer gone", "error": "NodeLost", "node": "server", "step": 4}
    )
    own = Failures.reported("server", {"message": "bad gradient", "error": "GradientError"})
    dead = NodeLost("worker-0", 4, "killed by signal 9")
    failures = Failures(hearsay)
    assert failures.cause() is hearsay
    failures.add(own)
    assert failures.cause() is own and isinstance(own, ExperimentError)
    failures.add(dead, certain=True)
    assert failures.cause() is dead


def test_who_tells_of_a_loss_was_not_lost_before_it() -> None:
    """A server that gives a silent worker up closes its connections: the others are quicker to say so than it is."""
    gone = {"error": "NodeLost", "step": 7, "phase": "receiving"}
    late = Failures.reported("worker-1", {"message": "closed", "node": "server", **gone})
    first = Failures.reported("server", {"message": "silent", "node": "worker-0", **gone})
    failures = Failures(late, "worker-1")
    assert failures.cause() is late
    failures.add(first, reporter="server")
    assert failures.cause() is first


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        (None, []),
        ("3", [3]),
        ("1-3", [1, 2, 3]),
        ("1,4-5", [1, 4, 5]),
        (f"{'0' * 20}7-08", [7, 8]),
        ("000", [0]),
    ],
)
def test_seeds(text: str | None, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "1,1", "0,00", "1..3", "9" * 40])
def test_seeds_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="--seed"):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("error", "keeps", "stands"),
    [
        (ExperimentError("a link broke"), True, True),
        (NodeLost("worker-0", 3, "killed"), True, True),
        (ExperimentError("a link broke"), False, False),
        (Interrupted("SIGINT"), True, False),
        (KeyError("a fault of ours"), True, False),
        (None, True, False),
    ],
)
def test_only_a_failed_run_is_left_standing_and_only_with_keep(
    error: BaseException | None, keeps: bool, stands: bool
) -> None:
    """Ctrl-C is no failure: whoever interrupts a run wants it gone."""
    session: Any = object.__new__(Session)
    calls: list[str] = []
    session.keep_failed, session._staffed, session._board = keeps, [], None
    session.context = SimpleNamespace(id="a1")
    session.fabric = SimpleNamespace(
        keep=lambda: calls.append("keep"), destroy=lambda: calls.append("destroy")
    )
    session.__exit__(None if error is None else type(error), error, None)
    assert calls == (["keep"] if stands else ["destroy"])


def test_what_the_fabric_cannot_keep_is_removed() -> None:
    session: Any = object.__new__(Session)
    removed: list[str] = []

    def refuse() -> None:
        raise ExperimentError("the agent is gone")

    session.keep_failed, session._staffed, session._board = True, [], None
    session.fabric = SimpleNamespace(keep=refuse, destroy=lambda: removed.append("all"))
    session.__exit__(ExperimentError, ExperimentError("a link broke"), None)
    assert removed == ["all"]


@pytest.mark.parametrize("fails", [False, True])
def test_packets_that_the_host_drops_are_those_of_the_trial(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The kernel counts from its start on."""
    counts = iter([1000, 1003])
    monkeypatch.setattr(real_links, "backlog_drops", lambda: next(counts))

    class Idle(real_links.RealTrial):
        def _perform(self) -> None:
            if fails:
                raise ExperimentError("a node failed")

        def conclude(self) -> dict[str, Any]:
            return {}

    trial: Any = object.__new__(Idle)
    trial.outcome, trial._watches, trial.t0_ns = TrialOutcome(), [], None
    trial.session = SimpleNamespace(control=SimpleNamespace(strangers=2))
    with pytest.raises(ExperimentError, match="failed") if fails else nullcontext():
        trial.run()
    assert (trial.outcome.backlog_drops, trial.outcome.strangers) == (3, 2)
    assert (trial.outcome.error is not None) == fails


def test_links_are_stopped_where_the_watch_of_the_host_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their report is not lost with it, and the failure is told."""
    monkeypatch.setattr(real_links, "backlog_drops", lambda: 0)

    class Ended(real_links.RealTrial):
        def _perform(self) -> None:
            pass

        def conclude(self) -> dict[str, Any]:
            return {}

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    trial: Any = object.__new__(Ended)
    trial.outcome, trial.t0_ns = TrialOutcome(), 1
    trial._watches = [SimpleNamespace(stop=full)]
    trial.session = SimpleNamespace(control=SimpleNamespace(strangers=2))
    trial.agent = SimpleNamespace(alive=lambda: True, stop=lambda: "report")
    with pytest.raises(OSError, match="No space left"):
        trial.run()
    assert (trial.outcome.links, trial.outcome.strangers) == ("report", 2)
    assert isinstance(trial.outcome.error, OSError)


@pytest.mark.parametrize("fails", [True, False])
def test_what_ended_a_run_is_told_where_its_summary_failed_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fails: bool
) -> None:
    """And its records are closed, and its logs are kept."""
    done: list[str] = []

    class Failing(LinkTrial):
        def shape(self) -> None:
            pass

        def collect(self) -> None:
            done.append("collected")

        def _perform(self) -> None:
            self.directory.link({"kind": "sample"})
            if fails:
                raise ExperimentError("a node failed")

        def _stop(self) -> None:
            done.append("stopped")

        def conclude(self) -> dict[str, Any]:
            raise OSError(errno.ENOSPC, "No space left on device")

    experiment = prepare(ROOT / "scenarios" / "demo.yaml", ["none"])
    plan = TrialPlan.create(experiment, experiment.algorithms[0], 1, tmp_path, Progress(quiet=True))
    with pytest.raises(ExperimentError if fails else OSError):
        Failing(plan).carry_out()
    assert done == ["collected", "stopped", "collected"]
    with pytest.raises(ValueError, match="closed"):
        plan.directory.link({"kind": "sample"})
    assert ("could not be summed up: [Errno 28]" in capsys.readouterr().err) == fails


def test_each_look_at_the_host_tells_what_came_since_the_one_before() -> None:
    readings = [Reading(10.0 + n, 5.0 + n / 2, n / 8, 0.0, drops) for n, drops in
                enumerate((7, 9, 9, 12))]  # fmt: skip
    watch: Any = object.__new__(HostWatch)
    looks: list[dict[str, Any]] = []
    ends = iter([False, False, True])
    watch._ended = SimpleNamespace(wait=lambda _: next(ends))
    watch._t0_ns, watch._write = time.monotonic_ns(), looks.append
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_events, "reading", iter(readings).__next__)
        watch._look()
    assert [look["backlog_drops"] for look in looks] == [2, 0, 3]
    assert [look["stolen_s"] for look in looks] == [0.125] * 3
    assert [look["idle_share"] for look in looks] == [0.5] * 3
    assert all(a["to_s"] == b["from_s"] for a, b in pairwise(looks)), "no time is left out"


@pytest.mark.parametrize("fails", [False, True])
def test_signals_are_as_before_whatever_happened(fails: bool) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    expected = pytest.raises(ValueError, match="gone wrong") if fails else nullcontext()
    with expected, interruptible():
        now = [signal.getsignal(number) for number in numbers]
        assert all(is_ is not was for is_, was in zip(now, before, strict=True))
        if fails:
            raise ValueError("gone wrong")
    assert [signal.getsignal(number) for number in numbers] == before


def test_the_first_signal_interrupts_and_later_ones_do_not_hold_up_the_cleaning() -> None:
    before, cleaned = signal.getsignal(signal.SIGTERM), list[str]()
    with pytest.raises(Interrupted, match="SIGTERM"), interruptible():
        try:
            signal.raise_signal(signal.SIGTERM)
            pytest.fail("it was not raised at once")
        finally:
            signal.raise_signal(signal.SIGHUP)
            cleaned.append("all")
    assert cleaned == ["all"] and signal.getsignal(signal.SIGTERM) == before


def test_signals_wait_until_what_is_shielded_is_done() -> None:
    before, done_first = signal.getsignal(signal.SIGTERM), list[str]()
    with pytest.raises(Interrupted, match="SIGHUP"), shielded():
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
        done_first.append("all")
    assert done_first == ["all"] and signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(ValueError, match="of its own"), shielded():
        signal.raise_signal(signal.SIGTERM)
        raise ValueError("of its own")
    assert signal.getsignal(signal.SIGTERM) == before


def done(role: str, parameters: str = "aa", sent: int = 500, segment: int = 1448) -> dict[str, Any]:
    counters = {
        "bytes_sent": 520, "bytes_retransmitted": 20, "bytes_received": 300, "segment_bytes": segment,
    }  # fmt: skip
    summary = {
        "role": role, "steps": 2, "parameters": parameters, "bytes_sent": sent, "bytes_received": 300,
    }  # fmt: skip
    return {"summary": summary, "counters": {"peer": counters}}


def test_the_end_of_a_stream_is_counted_as_a_byte_by_the_kernel() -> None:
    message = done("server")
    message["summary"]["bytes_received"] = 299
    assert faults({"server": message}, [], []) == []
    message["summary"]["bytes_received"] = 298
    assert len(faults({"server": message}, [], [])) == 1


def test_what_endpoints_say_to_each_other_is_no_frame_of_a_role() -> None:
    message = {**done("server", sent=460), "excuses": (40, 80)}
    message["summary"]["bytes_received"] = 220
    assert faults({"server": message}, [], []) == []


@pytest.mark.parametrize("segment", [1448, 1398, 536])
def test_what_a_nodes_own_queue_refused_at_first_is_counted_again_in_whole_segments(
    segment: int,
) -> None:
    counted = 690 * segment

    def found(sent: int) -> list[str]:
        message = done("server", sent=counted, segment=segment)
        message["counters"]["peer"]["bytes_sent"] = sent + 20  # 20 of them a second time
        return faults({"server": message}, [], [])

    for times in (0, 1, 3):
        assert found(counted + times * segment) == []
    for wrong in (counted - segment, counted + segment - 1, counted + 4 * segment):
        assert len(found(wrong)) == 1


@pytest.mark.parametrize(
    ("drops", "bundle", "again", "right"),
    [
        (164, 1, 163 * 1398 + 1182, True),  # a message's last segment is shorter
        (164, 1, 164 * 1398, True),
        (164, 1, 164 * 1398 + 1, False),
        (41, 4, 164 * 1398, True),
        (164, 1, -1, False),
        (0, 1, 1398 * 40, False),
    ],
)
def test_a_full_queue_may_refuse_as_many_segments_as_it_counted_drops(
    drops: int, bundle: int, again: int, right: bool
) -> None:
    counted = 24 * 10 * 38516
    message = done("server", sent=counted, segment=1398)
    message["counters"]["peer"]["bytes_sent"] = counted + again + 20
    up = {"link": "server", "direction": "up", "drops": drops, "gso_max_segs": bundle}
    down = {**up, "direction": "down", "drops": 1000}
    links = [up, down, {**up, "link": "worker-0", "drops": 1000}]
    assert (not faults({"server": message}, [], [], links=links)) == right


STEPS = [{"node": "worker-0", "step": step} for step in (1, 2)]


def test_nodes_that_agree_have_no_fault() -> None:
    messages = {"server": done("server"), "worker-0": done("worker")}
    assert faults(messages, STEPS, [{"step": 1, "node": "server", "parameters": "cc"}]) == []


@pytest.mark.parametrize(
    ("messages", "steps", "said"),
    [
        (
            {"server": done("server"), "worker-0": done("worker", "bb")},
            STEPS,
            "after step 2 the replicas differed: server against worker-0",
        ),
        (
            {"worker-0": done("worker")},
            STEPS[:1],
            "worker-0 made 2 steps, but 1 are in the records",
        ),
        (
            {"worker-0": done("worker", sent=460)},
            STEPS,
            "frames of 460 B out and 300 B in, its sockets 500 B",
        ),
    ],
)
def test_disagreement_is_named(messages, steps, said) -> None:
    (sentence,) = faults(messages, steps, [])
    assert said in sentence
