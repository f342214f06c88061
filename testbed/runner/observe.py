"""Prometheus beside a session's nodes, from their start to their end: it scrapes every node and the
session. ``observed`` is the whole of it.

It has no privileges, a folder of its own that goes with it, and is reached at a loopback address of
this machine. What is made is in a journal, so that ``testbed clean`` removes it after a kill.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer
from typing import IO, TYPE_CHECKING, Any

from testbed.errors import InputError, MachineError
from testbed.fabric import cleanup
from testbed.fabric.file_view import NODE_USER, account
from testbed.fidelity.evidence import CheckResult, State
from testbed.host import prometheus
from testbed.host.user_namespace import FABRIC
from testbed.journal import Journal, start_time
from testbed.links.network.namespaces import inside
from testbed.process import effective_capabilities
from testbed.records.exporter import BoundedThreads, SessionExporter
from testbed.records.manifest import THRESHOLDS, Thresholds
from testbed.runner import dashboard
from testbed.runner.dashboard import ObservedRun
from testbed.runner.signals import shielded
from testbed.scenario.link_state import FRAME_BYTES
from testbed.topology import METRICS_PORT, VIRTUAL
from testbed.user_files import PinnedFolder

if TYPE_CHECKING:
    from testbed.runner.session import Session
    from testbed.runner.trial import TrialPlan


LEAST_STEPS = 20
"""Steps of all workers below which the share that overran is not judged."""


@dataclass
class _BusyTotals:
    """Sums over the samples in which one link direction was backlogged throughout."""

    seconds: float = 0.0
    asked_bits: float = 0.0
    delivered_bits: float = 0.0
    rows: int = 0
    """Stretches of such samples."""
    inside: bool = False

    def add(self, sample: Mapping[str, Any]) -> None:
        if sample["busy"]:
            self.seconds += sample["to_s"] - sample["from_s"]
            self.asked_bits += sample["asked_bits"]
            self.delivered_bits += sample["delivered_bits"]
            self.rows += not self.inside
        self.inside = sample["busy"]


class VerdictSoFar:
    """The checks of a run's verdict that can be made while it lasts, with the same limits, fed by
    its records as they come. ``processors``: of this machine.

    What is only known at the end (completion of messages, byte identity, round trips, loss) is not
    in it, so it may be better than the verdict, and worse where a share is large only at the
    beginning.
    """

    def __init__(self, processors: int, limits: Thresholds = THRESHOLDS) -> None:
        self._processors, self._limits = processors, limits
        self._busy: dict[str, _BusyTotals] = {}
        self._steps = self._overran = 0
        self._counts: Counter[str] = Counter()
        self._latest_ms = self._stolen_s = self._watched_s = 0.0

    def step(self, event: Mapping[str, Any]) -> None:
        """Take in a node's event; only ``step`` records matter."""
        if event.get("kind") == "step":
            self._steps += 1
            self._overran += bool(event["overran"])

    def record(self, record: Mapping[str, Any]) -> None:
        """Take in a record of links or the host."""
        kind = record.get("kind")
        if kind == "sample":
            end = f"{record['link']} {record['direction']}"
            self._busy.setdefault(end, _BusyTotals()).add(record)
        elif kind == "change":
            late_ms = 1e3 * (record["applied_s"] - record["due_s"])
            self._latest_ms = max(self._latest_ms, late_ms)
        elif kind == "mismatch":
            self._counts["mismatch"] += 1
        elif kind == "host":
            self._stolen_s += record["stolen_s"]
            self._watched_s += record["to_s"] - record["from_s"]
            self._counts["drops"] += record["backlog_drops"]

    def states(self) -> dict[str, State]:
        """Return the state of each check so far, keyed by its measure in the verdict; checks
        without enough to judge are valid."""
        return {
            result.measure: result.state(self._limits.degraded_factor) for result in self._results()
        }

    def _results(self) -> Iterator[CheckResult]:
        limits = self._limits
        yield CheckResult("read_back", "", float(self._counts["mismatch"]), 0.0)
        ratio = max(map(self._ratio_error, self._busy.values()), default=0.0)
        yield CheckResult("link_ratio", "", ratio, limits.ratio_deviation)
        yield CheckResult("lateness_max_ms", "", self._latest_ms, limits.lateness_max_ms)
        overran = self._overran / self._steps if self._steps >= LEAST_STEPS else None
        yield CheckResult("overrun_share", "", overran, limits.overrun_share)
        stolen = self._stolen_s / (self._watched_s * self._processors) if self._watched_s else None
        long = self._watched_s >= limits.busy_floor_s
        yield CheckResult("stolen_share", "", stolen if long else None, limits.stolen_share)
        drops = float(self._counts["drops"])
        yield CheckResult("foreign_drops", "", drops, limits.foreign_drops)

    def _ratio_error(self, busy: _BusyTotals) -> float:
        """Return |delivered / asked - 1|, less one packet at either end of each stretch."""
        if busy.seconds < self._limits.busy_floor_s or not busy.asked_bits:
            return 0.0
        slack = 2 * 8 * FRAME_BYTES * busy.rows / busy.asked_bits
        return max(0.0, abs(busy.delivered_bits / busy.asked_bits - 1) - slack)


FOLDER, LOG = "observe", "prometheus.log"
"""Folder of all files for Prometheus and Grafana, in the comparison's directory; in it, what
Prometheus says."""
OBSERVED = (FABRIC, "docker", "swarm")
"""Fabrics whose nodes are reached from the session, at addresses of their own."""
PORT = 9090
"""Port of Prometheus; on this machine's loopback another one where it is taken."""
LOOPBACK = "127.0.0.1"
USER = NODE_USER + 1
"""User id of Prometheus where root starts it: not that of nodes, whose processes are not ours."""
STORED_S, STORED_BYTES = "1d", "192MB"
"""Longest time and largest size of what Prometheus stores."""
READY_S = 30.0
_SETPCAP = 8
"""The capability that it takes to remove others from the bounding set."""
_END_S = 5.0
_JUDGE_EVERY_S = 0.5
_MOST_CONNECTIONS = 32
_TAIL = 400

Connect = Callable[[], socket.socket]


def require(fabric: str) -> None:
    """Raise InputError or MachineError where a run on ``fabric`` cannot be observed."""
    if fabric == VIRTUAL:
        raise InputError(
            "virtual time passes faster than anybody could scrape it",
            where="--observe",
            hint="`testbed report` draws the same from the records; or take --fabric netns",
        )
    if fabric not in OBSERVED:
        raise InputError(
            f"runs on the fabric {fabric!r} cannot be observed",
            where="--observe",
            hint=f"Take --fabric {' or '.join(OBSERVED)}",
        )
    prometheus.require()


class RunObserver:
    """Metrics of the session: the trial's records go through here while it is carried out."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.exporter = SessionExporter({})
        self._show = show
        self._lock = threading.Lock()
        self._so_far = VerdictSoFar(os.cpu_count() or 1)
        self._t0_unix_s = time.time()
        self._judged_s = float("-inf")

    def begin(self, plan: TrialPlan) -> None:
        """A trial begins: all metrics start anew, and the dashboard shows its run."""
        run = plan.directory.path.name
        labels = {"scenario": plan.experiment.scenario.name, "algorithm": plan.algorithm.name}
        initial = {
            str(end): (state.rate_bits, state.impairments.to_json())
            for end, state in plan.experiment.timeline.initial.items()
        }
        with self._lock:
            self._so_far = VerdictSoFar(os.cpu_count() or 1)
            self.exporter.begin({"run": run, **labels}, initial)
            self.exporter.judged(self._so_far.states())
        self._show(run)

    def start(self, t0_ns: int) -> None:
        """Take in when t0 is, on the monotonic clock."""
        self._t0_unix_s = time.time() + (t0_ns - time.monotonic_ns()) / 1e9

    def event(self, event: Mapping[str, Any]) -> None:
        """Take in a node's event. From any thread, as ``record``."""
        with self._lock:
            self._so_far.step(event)
            self._judge()

    def record(self, record: Mapping[str, Any]) -> None:
        """Take in a record of links, nodes or the host."""
        with self._lock:
            self._so_far.record(record)
            self.exporter.record(record, self._t0_unix_s)
            self._judge()

    def _judge(self) -> None:
        if (now := time.monotonic()) - self._judged_s >= _JUDGE_EVERY_S:
            self._judged_s = now
            self.exporter.judged(self._so_far.states())


@contextmanager
def observed(
    session: Session, folder: PinnedFolder, path: Path, link: str, say: Callable[[str], None]
) -> Iterator[RunObserver]:
    """Start Prometheus for a session whose nodes are up. ``folder``: the comparison's, where users
    find its own folder at ``path``.

    Raises MachineError when it does not come up; nothing is left then.
    """
    networks = session.networks
    netns = networks.control_netns
    cleanup.register()
    with ExitStack() as stack:
        journal = Journal.open(f"{session.context.id}-{FOLDER}")
        stack.callback(_shielded, lambda: cleanup.sweep(journal))
        # a control network of the engine ends on this machine, beside the loopback of all others
        own, port = (networks.control_host, _free_port()) if netns is None else (LOOPBACK, PORT)
        forwarder = _Forwarder(lambda: _connect(netns, LOOPBACK, port))
        stack.callback(forwarder.stop)
        address = f"http://{LOOPBACK}:{forwarder.port}"
        nodes = {
            name: f"{placement.control_address}:{METRICS_PORT}"
            for name, placement in session.places.items()
        }

        own_folder = folder.folder(FOLDER)

        def about(run: str) -> ObservedRun:
            return ObservedRun(nodes, f"{own}:{METRICS_PORT}", address, run, link)

        def show(run: str) -> None:
            dashboard.write(own_folder, path, about(run))

        show("")
        observer = RunObserver(show)
        stack.callback(observer.exporter.serve(own, METRICS_PORT, inside(netns)))
        log = stack.enter_context(own_folder.append(LOG))
        process = _start(journal, about(""), log, netns, port)
        stack.callback(_end, process)
        _await_ready(process, lambda: _connect(netns, LOOPBACK, port), log)
        say(f"Prometheus answers at {address} while this lasts; see {path}")
        yield observer


def _shielded(action: Callable[[], object]) -> None:
    with shielded():
        action()


def _free_port() -> int:
    """Return a port of this machine's loopback at which nobody listens."""
    with socket.create_server((LOOPBACK, 0)) as probe:
        return int(probe.getsockname()[1])


def _start(
    journal: Journal, about: ObservedRun, log: IO[bytes], netns: str | None, port: int
) -> subprocess.Popen[bytes]:
    """Start Prometheus in a namespace, in a folder of its own that the journal names. Its settings
    come from no folder that somebody else may have changed."""
    home = Path(tempfile.gettempdir()) / f"narrows-{journal.run}"
    journal.add("folder", path=str(home))
    home.mkdir(mode=0o711)
    for name, text in dashboard.prometheus_files(about).items():
        (home / name).write_text(text, encoding="utf-8")
        (home / name).chmod(0o444)
    data = home / "data"
    data.mkdir(mode=0o700)
    if account() is not None:
        os.chown(data, USER, USER)
    program = os.open(prometheus.require(), os.O_RDONLY)
    try:
        process = subprocess.Popen(
            command(
                f"/proc/self/fd/{program}",
                home,
                netns,
                port,
                unprivileged=account() is None,
                bounding=bool(effective_capabilities() >> _SETPCAP & 1),
            ),
            env={"PATH": os.environ.get("PATH", os.defpath), "GOMAXPROCS": "1"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(program,),
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise MachineError(
            f"{error.filename} is not on this machine", fix="Install util-linux"
        ) from None
    finally:
        os.close(program)
    journal.add("process", pid=process.pid, start=start_time(process.pid) or "")
    return process


def command(
    program: str,
    home: Path,
    netns: str | None,
    port: int = PORT,
    *,
    unprivileged: bool,
    bounding: bool = True,
) -> list[str]:
    """Return the command of Prometheus: every program on the way replaces itself by the next.

    It ends with this process, and gives way to the run. ``unprivileged``: there is no other user
    than this one to become. ``bounding``: this process may empty the bounding set of capabilities.
    """
    nsenter = [] if netns is None else ["nsenter", f"--net={netns}"]
    user = [] if unprivileged else [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    bounds = ["--bounding-set=-all"] if bounding else []
    rights = ["--no-new-privs", "--inh-caps=-all", *bounds, "--pdeathsig=KILL"]
    return [
        *("nice", "-n", "10", *nsenter, "setpriv", *user, *rights, program),
        f"--config.file={home}/prometheus.yml",
        f"--storage.tsdb.path={home}/data",
        f"--storage.tsdb.retention.time={STORED_S}",
        f"--storage.tsdb.retention.size={STORED_BYTES}",
        "--storage.tsdb.wal-segment-size=10MB",
        f"--web.listen-address={LOOPBACK}:{port}",
        f"--web.max-connections={_MOST_CONNECTIONS}",
        "--query.max-concurrency=4",
        "--query.timeout=10s",
        "--log.level=warn",
    ]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _connect(netns: str | None, host: str, port: int) -> socket.socket:
    """Connect from within a namespace. Raises OSError."""
    with inside(netns):
        return socket.create_connection((host, port), timeout=_END_S)


def _await_ready(process: subprocess.Popen[bytes], connect: Connect, log: IO[bytes]) -> None:
    """Wait until Prometheus, which writes to ``log``, answers queries. Raises MachineError where it
    ends, or never does."""
    give_up = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < give_up:
        with suppress(OSError, http.client.HTTPException):
            if get(connect, "/-/ready")[0] == http.client.OK:
                return
        time.sleep(0.05)
    written = Path(f"/proc/self/fd/{log.fileno()}")  # the file itself, whatever has its name now
    words = written.read_text(errors="replace")[-_TAIL:].strip()
    raise MachineError(
        f"Prometheus did not come up: {words or 'it wrote nothing'}",
        fix="Leave --observe out, or look at what it wrote",
    )


def get(connect: Connect, path: str) -> tuple[int, bytes]:
    """Return status and body of an HTTP request. Raises OSError or HTTPException."""
    client = http.client.HTTPConnection(LOOPBACK)
    client.sock = connect()
    try:
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, answer.read()
    finally:
        client.close()


class _Forwarder(BoundedThreads, TCPServer):
    """Connections to this machine's loopback, carried on to where ``connect`` leads.

    A thread for each direction of a connection; so many connections at a time that no browser
    lacks one.
    """

    block_on_close = False
    most = _MOST_CONNECTIONS

    def __init__(self, connect: Connect) -> None:
        self.connect = connect
        try:
            super().__init__((LOOPBACK, PORT), _Forwarding)
        except OSError:  # it is taken: the kernel chooses another
            super().__init__((LOOPBACK, 0), _Forwarding)
        self.port = int(self.server_address[1])
        self._thread = threading.Thread(target=self.serve_forever, name="forwarder", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more connections."""
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Forwarding(BaseRequestHandler):
    server: _Forwarder

    def handle(self) -> None:
        with self.server.connect() as onward:
            onward.settimeout(None)
            back = threading.Thread(target=_carry, args=(onward, self.request), daemon=True)
            back.start()
            _carry(self.request, onward)
            back.join()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    """Carry what comes until there is no more, and tell the other side so."""
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            sink.sendall(piece)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
