"""A run's manifest: under what conditions its records were made, facts about the machine, and the
table of thresholds of verdicts. A run without one is not plotted.
"""

from __future__ import annotations

import gzip
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any

import testbed
from testbed.process import PACKAGE
from testbed.records.events import SCHEMA

_DIRECT = (
    "docker",
    "greenlet",
    "matplotlib",
    "mnist1d",
    "numba",
    "numpy",
    "orjson",
    "prometheus-client",
    "protobuf",
    "pydantic",
    "pyroute2",
    "rich",
    "ruamel-yaml",
    "scikit-learn",
    "scipy",
    "torch",
    "typer",
)
"""Libraries that this package imports itself: they are listed where they are not installed, too."""
_PLUG_INS = "narrows."
"""How groups of entry points begin in which other packages register their parts."""
_GIT_SECONDS = 5
_EVERY_USER = ["0", "0", str(2**32 - 1)]
"""The one row of a user map that maps everybody: of a machine's own namespace."""


def machine_facts() -> dict[str, Any]:
    """Versions, kernel, processor, memory, GPUs, clock, and the commit if this is a checkout.

    What cannot be found out is None. Nothing is imported to ask for its version.
    """
    return {
        "versions": dict(versions()),
        "kernel": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cpu": {"model": cpu_model(), "count": os.cpu_count(), "usable": _usable_cpus()},
        "memory_bytes": _memory_bytes(),
        "gpus": gpus(),
        "clock_source": _line(
            Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        ),
        "kernel_hz": _kernel_hz(),
        "user_namespace": _text(Path("/proc/self/uid_map")).split() != _EVERY_USER,
        "congestion_default": _line(Path("/proc/sys/net/ipv4/tcp_congestion_control")),
        "commit": _own_commit(),
    }


@cache
def versions() -> Mapping[str, str | None]:
    """Version of everything that takes part in a run, read once: this package, Python, every
    installed library that it needs directly or indirectly, and packages that register parts. None:
    not installed."""
    by_package: dict[str, str | None] = {
        "narrows": testbed.__version__,
        "python": platform.python_version(),
        **dict.fromkeys(_DIRECT),
    }
    groups = (group for group in entry_points().groups if group.startswith(_PLUG_INS))
    points = (point for group in groups for point in entry_points(group=group))
    pending = ["narrows", *_DIRECT, *(point.dist.name for point in points if point.dist)]
    known: set[str] = set()
    while pending:
        name = _SEPARATORS.sub("-", pending.pop()).lower()
        if name in known:
            continue
        known.add(name)
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        by_package[name] = by_package.get(name) or package.version
        wanted = package.requires or ()
        pending += [_NAME.split(line, maxsplit=1)[0] for line in wanted if _EXTRA not in line]
    return by_package


_SEPARATORS, _NAME, _EXTRA = re.compile(r"[-_.]+"), re.compile(r"[^\w.-]"), "extra =="
"""Within a package's name; what ends it in a requirement; in requirements of extras alone."""


@cache
def _own_commit() -> dict[str, Any] | None:
    """The commit of the code that this process runs, asked once."""
    return commit(PACKAGE.parent)


def commit(root: Path) -> dict[str, Any] | None:
    """``{"hash", "dirty"}`` of the git checkout whose top is ``root``; None if it is not one."""
    if not (root / ".git").exists():
        return None
    hash_, status = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain")
    return (
        None
        if hash_ is None
        else {"hash": hash_, "dirty": None if status is None else bool(status)}
    )


def _git(root: Path, *arguments: str) -> str | None:
    # The tree may belong to another user (a clone used through sudo): git would refuse to read it.
    command = ["git", "-c", f"safe.directory={root}", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str | None:
    """The processor's name, as its maker writes it."""
    match = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or None


def _memory_bytes() -> int | None:
    match = re.search(r"^MemTotal:\s*(\d+) kB", _text(Path("/proc/meminfo")), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def gpus(driver: Path = Path("/proc/driver/nvidia")) -> dict[str, Any] | None:
    """``{"models", "driver"}`` of the NVIDIA devices, as their driver names them; None without."""
    texts = [_text(path) for path in sorted(driver.glob("gpus/*/information"))]
    lines = [re.search(r"^Model:(.+)$", text, re.MULTILINE) for text in texts]
    models = [line[1].strip() for line in lines if line]
    version = re.search(r"\s(\d+\.\d[\d.]*)\s", _text(driver / "version"))
    return {"models": models, "driver": version and version[1]} if models else None


def _kernel_hz() -> int | None:
    """The kernel's tick rate, where its configuration can be read."""
    text = _text(Path(f"/boot/config-{platform.release()}"))
    if not text:
        try:
            text = gzip.decompress(Path("/proc/config.gz").read_bytes()).decode(errors="replace")
        except OSError:
            return None
    match = re.search(r"^CONFIG_HZ=(\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else None


def _line(path: Path) -> str | None:
    return _text(path).strip() or None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Shares and deviations are fractions, unless a name ends in a unit."""

    ratio_deviation: float = 0.02
    """|delivered / asked - 1| over the intervals in which the link was backlogged throughout."""
    mape_1s: float = 0.02
    """Mean error per 1 s bin over the same intervals."""
    busy_floor_s: float = 2.0
    """Backlogged time below which the two above are not judged: a few looks are no statistics."""
    excess_share: float = 0.02
    """Delivered bits beyond what was asked and one bundle, of all that was delivered, in whole
    seconds, backlogged or not."""
    lateness_p99_ms: float = 10.0
    """How late a link change took effect …"""
    lateness_max_ms: float = 50.0
    """… and the latest of them: a single one can be a fault."""
    node_lateness_ms: float = 250.0
    """How late a node was paused, killed or started again: an engine takes tens of ms."""
    unwatched_share: float = 0.01
    """Time in which nobody looked at a link, beyond the 50 ms that two looks may be apart."""
    outage_bundles: int = 4
    """Offload bundles that may leave in an outage: on their way, or by which it begins."""
    outage_recharged_s: float = 50.0
    """After so long in an outage one more bundle leaves: the kernel keeps no charge for longer."""
    resume_ms: float = 20.0
    """How late service was back after an outage, beyond one bundle's own time."""
    loss_confidence: float = 0.999
    """Confidence of the interval of a line's loss, for all lines of a run together."""
    rtt_ms: float = 1.0
    """Error of the least round-trip time …"""
    rtt_share: float = 0.02
    """… plus this share of what was asked."""
    starved_share: float = 0.05
    """Time under traffic in which no processor was free and something waited for one: …"""
    starved_idle: float = 0.05
    """… idle for at most this share of about 100 ms, …"""
    starved_pressure: float = 0.5
    """… in at least this share of which something waited."""
    direct_share: float = 0.001
    """Packets that passed a link outside its shaped class."""
    foreign_drops: int = 0
    """Packets dropped anywhere but in the emulated queues."""
    stolen_share: float = 0.01
    """Processor time of this host that others on the same hardware took."""
    overrun_share: float = 0.01
    """Steps whose computation took longer than its pace."""
    contended_share: float = 0.01
    """Compress and apply phases that waited for a processor."""
    contended_ratio: float = 1.5
    """Wall over CPU time above which a phase counts as having waited."""
    contended_loss: float = 0.01
    """Share of its step that a phase must have lost besides: less does not move a result."""
    completion_share: float = 0.01
    """Error of a message's completion against the service curve of the asked rates …"""
    completion_packets: int = 2
    """… plus so many packet times at the slowest link on its way."""
    completion_floor_s: float = 0.01
    """Messages that the links could carry in less are not judged: waking a thread would decide."""
    completion_rtt_s: float = 0.002
    """Messages on ways with longer round trips are not judged: there TCP's own start decides."""
    identity_deviation: float = 0.005
    """|bytes at a link's class / bytes that the sockets sent through it - 1|."""
    identity_slack_bytes: int = 1024
    """Allowed besides per connection: address resolution and handshakes."""
    around_floor_bytes: int = 65_536
    """Bytes of a job that a node may move without its link, through memory, the control network or
    its loopback, so that processes can meet (some kB for each); …"""
    around_share: float = 0.01
    """… or, over the control network, this share of what its link's interface carried, if that is
    more; over the loopback, all that the link's interface carried."""
    degraded_factor: float = 3.0
    """Up to so many times a threshold a run is degraded; beyond it, invalid."""


THRESHOLDS = Thresholds()


def manifest(
    *,
    scenario_name: str,
    content_hash: str,
    algorithm: Mapping[str, Any],
    seed: int,
    dilation: float,
    pace_s: float | None,
    nodes: Mapping[str, Mapping[str, Any]],
    links: Iterable[Mapping[str, Any]],
    fabric: str,
    congestion: str | None = None,
    model: Mapping[str, Any] | None = None,
    hosts: Sequence[Mapping[str, Any]] = (),
    pacing: Mapping[str, Any] | None = None,
    thresholds: Thresholds = THRESHOLDS,
    machine: Mapping[str, Any] | None = None,
    started_utc: str | None = None,
) -> dict[str, Any]:
    """The object that becomes ``manifest.json``.

    ``algorithm``: its whole row, ``name`` among it. ``pace_s``: wall seconds that a step's
    computation is held to; ``pacing``: how they are shared among layers. ``nodes``: by name, each
    at least ``{"role", "rank", "peer"}``. ``links``: every link direction as asked and as read back
    from the kernel. ``model``: of modelled links, how. ``machine``: as ``machine()`` returns it.
    ``hosts``: of a swarm, with their clocks and the network between them.
    """
    for name, node in nodes.items():
        if missing := {"role", "rank", "peer"} - set(node):
            raise ValueError(f"node {name!r} in the manifest lacks {', '.join(sorted(missing))}")
    if "name" not in algorithm:
        raise ValueError("the algorithm in the manifest has no name")
    return {
        "schema": SCHEMA,
        "started_utc": started_utc or datetime.now(UTC).isoformat(timespec="seconds"),
        "scenario": scenario_name,
        "scenario_hash": content_hash,
        "algorithm": dict(algorithm),
        "seed": seed,
        "fabric": fabric,
        "dilation": dilation,
        "tcp_timers": tcp_timers(dilation),
        "congestion": congestion,
        "model": None if model is None else dict(model),
        "pace_s": pace_s,
        "pacing": None if pacing is None else dict(pacing),
        "nodes": {name: dict(node) for name, node in nodes.items()},
        "links": [dict(link) for link in links],
        **({"hosts": [dict(host) for host in hosts]} if hosts else {}),
        "thresholds": asdict(thresholds),
        "machine": dict(machine_facts() if machine is None else machine),
    }


def tcp_timers(dilation: float) -> str:
    """Describe TCP's own timers in model time: they run on the wall clock whatever the dilation."""
    if dilation == 1:
        return (
            "Not dilated: model time is wall time, and TCP's timers are what they are on any host."
        )
    return (
        "TCP's own timers (retransmission time-out, delayed acknowledgement) run on the wall "
        f"clock: in model time they are 1/{dilation:g} as long, a time-out of 200 ms is "
        f"{200 / dilation:.3g} ms."
    )


def peer_names(manifest: Mapping[str, Any]) -> dict[int, str]:
    """Each node's name by its number in frames."""
    return {int(node["peer"]): name for name, node in manifest["nodes"].items()}


def recorded_every(manifest: Mapping[str, Any]) -> int:
    """Every so-many-th worker's steps are recorded: 1 but in very large simulations."""
    return int((manifest.get("model") or {}).get("recorded_every", 1))
