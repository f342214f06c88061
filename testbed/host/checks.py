"""Every need of the project as a named check, in the order in which they build on each other: how
it is judged, and what mends it.
"""

from __future__ import annotations

import functools
import grp
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from testbed import cgroups
from testbed.errors import EXPORTS, EXTRAS, IN_CHECKOUT, MachineError, install_command
from testbed.host import docker_engine as engine_module
from testbed.host import images, packages, paths, user_namespace
from testbed.host.paths import has_gpu
from testbed.host.uml import guest as uml_guest
from testbed.process import is_trusted, users_environment
from testbed.topology import CONTROL_PORT

if TYPE_CHECKING:
    from testbed.links.capabilities import Capabilities


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of a probe. ``fix``: what to do, empty when nothing is wrong."""

    ok: bool
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class HostCheck:
    """A need of this project. ``mend`` is what ``doctor --fix`` does about it; None: nothing it can
    do.

    Without an optional need everything but what its ``detail`` names works.
    """

    name: str
    probe: Callable[[], Finding]
    mend: Callable[[], object] | None = None
    required: bool = True
    fabrics: str = ""
    """Those that need it, where others run without."""


@dataclass(frozen=True, slots=True)
class Result:
    """A check and what came of it."""

    check: HostCheck
    finding: Finding

    @property
    def failed(self) -> bool:
        """True if this machine cannot be used as it is."""
        return self.check.required and not self.finding.ok

    def to_json(self) -> dict[str, object]:
        """``{"name", "ok", "detail", "fix"}``."""
        detail = self.finding.detail if self.check.required else f"{self.finding.detail} (optional)"
        if self.failed and self.check.fabrics:
            detail += f" (only {self.check.fabrics} need it)"
        fix = "" if self.finding.ok else self.finding.fix
        return {"name": self.check.name, "ok": self.finding.ok, "detail": detail, "fix": fix}


def judge(check: HostCheck) -> Result:
    """Probe once; a MachineError says what is wrong and how to mend it."""
    try:
        return Result(check, check.probe())
    except MachineError as error:
        return Result(check, _said(error))


def mended(check: HostCheck) -> Result:
    """Probe; where that fails and there is a remedy, apply it and probe again."""
    result = judge(check)
    if result.finding.ok or check.mend is None:
        return result
    try:
        check.mend()
    except MachineError as error:
        return Result(check, _said(error))
    return judge(check)


def _said(error: MachineError) -> Finding:
    return Finding(False, error.message, error.fix or "")


_CONGESTION = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_LISTENS = "0A"


def control_port() -> Finding:
    """Nobody listens on every address at the control network's port; runs use their own."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        lines = table.read_text().splitlines()[1:] if table.exists() else []
        for address, _, state in (line.split()[1:4] for line in lines):
            host, _, port = address.partition(":")
            if (int(port, 16), state, set(host)) == (CONTROL_PORT, _LISTENS, {"0"}):
                taken = f"port {CONTROL_PORT} is taken on all addresses"
                return Finding(False, taken, "Stop what listens there")
    return Finding(True, f"port {CONTROL_PORT} is free")


def subnets() -> Finding:
    """Two free private subnets for a run."""

    chosen = free_subnets(routed(), nodes=8)
    return Finding(True, " and ".join(map(str, chosen)))


def congestion_controls() -> Finding:
    """Which congestion controls scenarios may ask for."""
    names = _CONGESTION.read_text().split()
    return Finding("cubic" in names, ", ".join(names), "`modprobe tcp_cubic`")


def namespaces() -> Finding:
    """How this user would run nodes as namespaces (`--fabric netns`)."""
    if user_namespace.privileged():
        return Finding(True, "as root, in the host's own network")
    _kernel()
    return Finding(True, "without root, in a user namespace that ends with the run")


def namespaces_allowed() -> bool:
    """Return whether this user may make network namespaces, as root or in a user namespace."""
    try:
        _kernel()
    except MachineError:
        return False
    return True


def queueing() -> Finding:
    """Check what no link can be shaped without."""
    if not namespaces_allowed():
        return _UNJUDGED
    lacking = _kernel().missing()
    if lacking is not None:
        return Finding(False, lacking.message, lacking.fix or "")
    return Finding(True, f"{', '.join(sorted(_kernel().kinds))} on kernel {_kernel().kernel}")


def in_network() -> Finding:
    """Check what links with ``at: network`` need."""
    from testbed.links.capabilities import needs_of_network

    return _optional(needs_of_network(), "links with `at: network` are refused")


def netem() -> Finding:
    """Check what delay, jitter, loss and the like need."""
    return _optional(("netem",), "scenarios with delay or loss need `--guest`")


def real_time() -> Finding:
    """Check whether the agent can have SCHED_FIFO, which keeps its deadlines under load."""
    if not namespaces_allowed():
        return _UNJUDGED
    if not _kernel().realtime:
        fix = "Run as root, or have RLIMIT_RTPRIO raised to 20 (`rtprio` in limits.conf)"
        return Finding(False, "SCHED_FIFO is refused: link changes may come late under load", fix)
    return Finding(True, "SCHED_FIFO can be had")


def _optional(needs: tuple[str, ...], otherwise: str) -> Finding:
    if not namespaces_allowed():
        return _UNJUDGED
    lacking = _kernel().missing(needs)
    if lacking is not None:
        return Finding(False, f"{lacking.message}: {otherwise}", lacking.fix or "")
    return Finding(True, ", ".join(need.split()[0] for need in needs))


@functools.cache
def _kernel() -> Capabilities:
    """Capabilities, tried out here or in a user namespace. Raises MachineError."""
    from testbed.links.capabilities import probe

    return probe() if user_namespace.privileged() else user_namespace.try_out()


_UNJUDGED = Finding(
    True, "this user cannot tell; the shaper's container finds out when a run starts"
)

NETWORK = (
    HostCheck("nodes as namespaces", namespaces, required=False),
    HostCheck("queueing disciplines", queueing),
    HostCheck("queues in the network", in_network, required=False),
    HostCheck("netem", netem, required=False),
    HostCheck("congestion controls", congestion_controls, required=False),
    HostCheck("real-time scheduling", real_time, required=False),
    HostCheck("control port", control_port),
    HostCheck("free subnets", subnets),
)


_GIB = 2**30
_GB = 10**9
ENVIRONMENT_GB, GPU_ENVIRONMENT_GB, IMAGES_GB, GPU_IMAGES_GB = 2.0, 6.0, 1.5, 5.5
"""Room on the disk for the environment and the images of nodes, without and with PyTorch's build
for GPUs: as ``docs/first-steps/install.md`` says."""
_MEMORY_GIB = 4
_CPUS = 2
_IMPORTS = (
    "google.protobuf",
    "greenlet",
    "numpy",
    "orjson",
    "prometheus_client",
    "pydantic",
    "pyroute2",
    "rich",
    "ruamel.yaml",
    "scipy",
    "typer",
)
_SETUP = "Run `testbed setup`"


def python_version() -> Finding:
    """Python 3.11 or newer."""
    detail = sys.version.split()[0]
    return Finding(sys.version_info >= (3, 11), detail, "Install Python 3.11 or newer")


def environment() -> Finding:
    """Every library that each command needs can be imported."""
    absent = [name for name in _IMPORTS if _absent(name)]
    detail = f"missing: {', '.join(absent)}" if absent else f"{len(_IMPORTS)} libraries found"
    return Finding(not absent, detail, f"Run `{install_command([])}`")


def extras() -> Finding:
    """Every library of the extra ``all`` can be imported: training, containers, figures."""
    wanted = [name for name, extra in EXTRAS.items() if extra not in EXPORTS]
    absent = [name for name in wanted if _absent(name)]
    detail = f"missing: {', '.join(absent)}" if absent else f"{len(wanted)} libraries found"
    return Finding(not absent, detail, f"Run `{install_command(EXTRAS[name] for name in absent)}`")


def privileges() -> Finding:
    """Root, a member of the docker group, or a user who may have a user namespace."""
    if os.geteuid() == 0:
        return Finding(True, "root")
    member = any(_group(number) == "docker" for number in os.getgroups())
    ways = ["member of the docker group: fabric docker"] if member else []
    ways += ["user namespaces: fabric netns"] if namespaces_allowed() else []
    detail = "; ".join(ways) or "neither root nor docker, and no user namespaces"
    return Finding(bool(ways), detail, f"Run as root, or: {engine_module.JOIN_GROUP}")


def search_path() -> Finding:
    """Check for folders in ``PATH`` from which no program is run: others may put one there."""
    folders = users_environment().get("PATH", os.defpath).split(os.pathsep)
    ignored = [repr(each) for each in folders if not is_trusted(each)]
    if not ignored:
        return Finding(True, "programs are looked for in folders that only root can change")
    detail = f"not looked for programs: {', '.join(ignored)}"
    return Finding(False, detail, "Take out of PATH what is no full path, or not root's alone")


def docker_engine() -> Finding:
    """An engine that answers, not too old."""
    version = engine_module.version()
    if version is None:
        engine_module.require()
    oldest = ".".join(map(str, engine_module.OLDEST_ENGINE))
    fine = engine_module.numbers(version or "") >= engine_module.OLDEST_ENGINE
    return Finding(fine, f"{version}", f"Install Docker Engine {oldest} or newer")


def compose() -> Finding:
    """Compose, not too old."""
    command = engine_module.compose_command()
    if command is None:
        return Finding(False, "not found", _SETUP)
    version = engine_module.compose_version_of(command) or ""
    fine = engine_module.numbers(version) >= engine_module.OLDEST_COMPOSE
    return Finding(fine, f"`{' '.join(command)}` {version}", "Install Docker Compose 1.29 or newer")


def images_current() -> Finding:
    """The node image was made from this very code."""
    return Finding(True, images.require())


def disk() -> Finding:
    """Room for the virtual environment."""
    return _room(paths.ROOT, GPU_ENVIRONMENT_GB if has_gpu() else ENVIRONMENT_GB)


def disk_of_images() -> Finding:
    """Room for images, where engines keep them."""
    docker = Path("/var/lib/docker")
    needed_gb = GPU_IMAGES_GB if has_gpu() else IMAGES_GB
    return _room(docker if docker.exists() else Path("/"), needed_gb)


def _room(folder: Path, needed_gb: float) -> Finding:
    free_gb = shutil.disk_usage(folder).free / _GB
    return Finding(free_gb >= needed_gb, f"{free_gb:.1f} GB free", f"Free up {needed_gb:g} GB")


def memory() -> Finding:
    """Room for five processes that import torch."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    return Finding(size >= _MEMORY_GIB, f"{size:.1f} GiB", f"The demo needs {_MEMORY_GIB} GiB")


def processors() -> Finding:
    """Enough processors that paced workers keep their pace."""
    count = len(os.sched_getaffinity(0))
    fix = "Use fewer nodes, a longer `pace`, or `dilation`"
    return Finding(count >= _CPUS, f"{count} for the demo's 5 nodes", fix)


def guest() -> Finding:
    """A kernel for ``--guest``."""
    return Finding(True, f"User-mode Linux {uml_guest.require().release} has netem: `--guest`")


def node_limits() -> Finding:
    """Where processes and memory of single nodes can be bounded without containers."""
    return Finding(True, f"control groups {cgroups.find()}")


def iperf3() -> Finding:
    """The program that makes cross traffic and records traces."""
    lacking = packages.missing(packages.TRAFFIC)
    detail = "not found: scenarios with `traffic` are refused" if lacking else "found"
    return Finding(not lacking, detail, "Run `testbed setup` as root, or: apt-get install iperf3")


def gpu() -> Finding:
    """An NVIDIA device, for nodes with ``device: cuda``."""
    present = has_gpu()
    detail = "found" if present else "none: nodes with `device: cuda` cannot run here"
    return Finding(present, detail, "Use `device: cpu`")


_CONTAINERS = "`--fabric docker` and `swarm`"

CHECKS = (
    HostCheck("python", python_version),
    HostCheck("environment", environment, paths.ensure),
    HostCheck("extras", extras, paths.ensure, required=IN_CHECKOUT),
    HostCheck("privileges", privileges),
    HostCheck("search path", search_path, required=False),
    HostCheck("docker engine", docker_engine, engine_module.ensure, fabrics=_CONTAINERS),
    HostCheck("docker compose", compose, engine_module.ensure, fabrics=_CONTAINERS),
    HostCheck("images", images_current, images.ensure, fabrics=_CONTAINERS),
    HostCheck("disk", disk),
    HostCheck("disk for images", disk_of_images, fabrics=_CONTAINERS),
    HostCheck("memory", memory),
    HostCheck("processors", processors, required=False),
    *NETWORK,
    HostCheck("control groups", node_limits, required=False),
    HostCheck("guest kernel", guest, lambda: packages.install(uml_guest.GUEST), required=False),
    HostCheck("iperf3", iperf3, lambda: packages.install(packages.TRAFFIC), required=False),
    HostCheck("gpu", gpu, required=False),
)


def _group(number: int) -> str | None:
    """A group's name; a number need not have one."""
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return None


def _absent(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is None
    except ModuleNotFoundError:
        return True


POOL = IPv4Network("10.208.0.0/12")
"""Private, and away from the addresses that engines and home routers take by default."""

_RESERVED = 8
"""Network, gateway, broadcast, and some room for a collector of metrics."""

_ROUTES = Path("/proc/net/route")


def free_subnets(
    taken: Iterable[IPv4Network], nodes: int, *, start: int = 0
) -> tuple[IPv4Network, IPv4Network]:
    """Two free subnets (data, control) with room for ``nodes`` nodes; /24 or larger.

    ``start`` rotates where the search begins, so that runs which start together rarely meet.
    Raises MachineError when fewer than two are free.
    """
    prefix = min(24, 32 - (nodes + _RESERVED - 1).bit_length())
    candidates = list(POOL.subnets(new_prefix=prefix))
    begin = start * 2 % len(candidates)
    occupied = list(taken)
    free = (
        candidate
        for candidate in candidates[begin:] + candidates[:begin]
        if not any(candidate.overlaps(other) for other in occupied)
    )
    chosen = tuple(islice(free, 2))
    if len(chosen) < 2:
        raise MachineError(
            f"no two free /{prefix} subnets are left in {POOL}",
            fix="Remove what earlier runs left: `testbed clean`, then `docker network ls`",
        )
    return chosen[0], chosen[1]


def routed(table: Path = _ROUTES) -> list[IPv4Network]:
    """The networks that this host has routes to; the default route is none, nor is a half of all
    addresses, as VPNs have one beside the other in its stead."""
    lines = table.read_text().splitlines()[1:]
    return [network for line in lines if (network := parse_route(line)).prefixlen > 1]


def parse_route(line: str) -> IPv4Network:
    """A line of ``/proc/net/route``: destination and mask are little-endian hexadecimal."""
    fields = line.split()
    destination, mask = (bytes.fromhex(fields[column])[::-1] for column in (1, 7))
    prefix = int.from_bytes(mask).bit_count()
    return IPv4Network((int.from_bytes(destination), prefix), strict=False)
