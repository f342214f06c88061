"""Docker engines on one machine, each a host of its own to whoever looks: its network, mounts, processes, name, clock. A swarm of them.

    with Lab(3) as lab: lab.run(1, "docker", "node", "ls")

The engine that the machine has is asked for the node image, once, and for nothing else. All that is made is below one folder, in
namespaces and control groups that bear the lab's name, and removed in any case: the engines end with the process that made them, and the next lab
removes what one that was killed has left.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

from testbed.host import images

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "swarm"
UNDERLAY = "10.99.0"
CLOCKS = (0, 1000, 77)
"""Seconds by which the monotonic clocks of hosts are ahead of the machine's."""
BOOT_S, END_S = 120.0, 60.0
MOST_S = 3600
"""A lab whose owner hangs ends after so many seconds."""
HOST = r"""
set -e
hostname {name}
mount --make-rshared /
mkdir -p {folder}/data
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/docker /run/lock
mount --make-shared /run
mount --bind {folder}/data /var/lib/docker
mount --bind {folder}/resolv.conf /etc/resolv.conf
exec docker-init -s -- timeout -s KILL {most_s} dockerd -H unix:///var/run/docker.sock --cgroup-parent /{group} \
    >{folder}/dockerd.log 2>&1
"""


def sh(*command: str, check: bool = True, **options: object) -> str:
    """Its output. Raises CalledProcessError with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if check and done.returncode:
        error = subprocess.CalledProcessError(
            done.returncode, command, done.stdout, f"{done.stdout}{done.stderr}"
        )
        error.add_note(error.stderr)
        raise error
    return str(done.stdout)


class Host:
    """One engine with its namespaces."""

    def __init__(self, lab: str, number: int, folder: Path) -> None:
        self.number, self.name = number, f"h{number}"
        self.address = f"{UNDERLAY}.{number}"
        self.netns, self.group = f"{lab}-{self.name}", f"{lab}-{self.name}"
        self.folder = folder / self.name
        self.process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        """Of its first process."""

    def start(self, clock_s: int = 0) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        script = HOST.format(name=self.name, folder=self.folder, group=self.group, most_s=MOST_S)
        clock = ["-T", "--monotonic", str(clock_s)] if clock_s else []
        command = ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/run/netns/{self.netns}"]
        command += ["unshare", "-m", "-u", "-p", *clock, "-f", "--mount-proc", "--kill-child=KILL"]
        with (self.folder / "boot.log").open("w") as log:
            self.process = subprocess.Popen(
                [*command, "bash", "-c", script],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
            )  # fmt: skip
        give_up = time.monotonic() + BOOT_S
        while not self._answers():
            if time.monotonic() > give_up or self.process.poll() is not None:
                raise RuntimeError(
                    f"{self.name} did not start: {(self.folder / 'boot.log').read_text()}"
                )
            time.sleep(0.05)

    def _answers(self) -> bool:
        """Return whether its own engine does: until its ``/run`` is mounted, the machine's would."""
        if not self.pid and self.process is not None:
            self.pid = next(iter(_children(self.process.pid)), 0)
        return (
            bool(self.pid)
            and self.run("docker", "info", "-f", "{{.Name}}", check=False).strip() == self.name
        )

    def command(self, *command: str) -> list[str]:
        """What carries a command out on this host."""
        return ["nsenter", "-t", str(self.pid), "-m", "-u", "-n", "-p", "-T", *command]

    def run(self, *command: str, check: bool = True, **options: object) -> str:
        return sh(*self.command(*command), check=check, **options)

    def cable(self, state: str) -> None:
        """Cut its cable to the others (``down``), or mend it (``up``)."""
        underlay = f"{self.netns.rsplit('-', 1)[0]}-ul"
        sh("ip", "-n", underlay, "link", "set", f"p{self.number}", state, check=False)

    def kill(self) -> None:
        """As if its power were cut: nothing of it says goodbye."""
        self.cable("down")
        self.end()

    def end(self) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(END_S)
        self.pid, self.process = 0, None


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(number) for number in path.read_text().split()] if path.exists() else []


class Lab:
    """A swarm of ``count`` hosts; the first is its manager."""

    def __init__(self, count: int = 3, *, heartbeat: str = "5s") -> None:
        self.name, self.heartbeat = f"nwl{os.getpid()}", heartbeat
        CACHE.parent.mkdir(exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=CACHE.parent))
        self.hosts = [Host(self.name, number, self.folder) for number in range(1, count + 1)]

    @property
    def manager(self) -> Host:
        return self.hosts[0]

    def __enter__(self) -> Lab:
        remove_abandoned()
        try:
            template = made_template()
            self._wire()
            for host, clock_s in zip(self.hosts, CLOCKS, strict=False):
                copy_data(template, host.folder / "data")
                host.start(clock_s)
            self._join()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wire(self) -> None:
        underlay = f"{self.name}-ul"
        sh("ip", "netns", "add", underlay)
        sh("ip", "-n", underlay, "link", "add", "br0", "type", "bridge")
        sh("ip", "-n", underlay, "link", "set", "br0", "up")
        for host in self.hosts:
            port = f"p{host.number}"
            sh("ip", "netns", "add", host.netns)
            sh(
                "ip",
                "-n",
                underlay,
                "link",
                "add",
                port,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                host.netns,
            )
            sh("ip", "-n", underlay, "link", "set", port, "master", "br0", "up")
            sh("ip", "-n", host.netns, "addr", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                sh("ip", "-n", host.netns, "link", "set", device, "up")

    def _join(self) -> None:
        first = self.manager
        first.run("docker", "swarm", "init", "--advertise-addr", first.address, "--listen-addr", f"{first.address}:2377",
                  "--dispatcher-heartbeat", self.heartbeat)  # fmt: skip
        token = first.run("docker", "swarm", "join-token", "-q", "worker").strip()
        for host in self.hosts[1:]:
            host.run(
                "docker",
                "swarm",
                "join",
                "--token",
                token,
                "--advertise-addr",
                host.address,
                f"{first.address}:2377",
            )

    def close(self) -> None:
        """Remove everything, whatever there is of it."""
        for host in self.hosts:
            with contextlib.suppress(subprocess.TimeoutExpired):
                host.end()
        for name in [host.netns for host in self.hosts] + [f"{self.name}-ul"]:
            if Path("/run/netns", name).exists():
                sh("ip", "netns", "del", name, check=False)
        for host in self.hosts:
            remove_groups(host.group)
        shutil.rmtree(self.folder, ignore_errors=True)

    def await_nothing_left(self) -> list[str]:
        """``left``, once what is ending has ended, or after a while."""
        give_up = time.monotonic() + END_S
        while (listed := self.left()) and time.monotonic() < give_up:
            time.sleep(0.2)
        return listed

    def left(self) -> list[str]:
        """What runs have left on any host that answers: containers, networks, secrets, configs, services, namespaces."""
        listed = []
        for host in self.hosts:
            if not host.pid:
                continue
            asked = [["docker", "ps", "-aq"], ["docker", "network", "ls", "-qf", "name=narrows"]]
            if host is self.manager:
                asked += [["docker", kind, "ls", "-q"] for kind in ("service", "secret", "config")]
            for command in asked:
                listed += [
                    f"{host.name} {command[1]} {line}" for line in host.run(*command).split()
                ]
            listed += [f"{host.name} namespace {name}" for name in _namespaces(host)]
        return listed


def _namespaces(host: Host) -> list[str]:
    """Those that are still there (their files stay for a while), but for the swarm's own of published ports, which nobody has."""
    mounts = Path(f"/proc/{host.pid}/mountinfo").read_text().splitlines()
    paths = [Path(line.split()[4]) for line in mounts if " - nsfs " in line]
    names = [path.name for path in paths if path.parent == Path("/run/docker/netns")]
    ingress = host.run("docker", "network", "ls", "--no-trunc", "-qf", "name=ingress").split()
    own = {
        "default",
        "ingress_sbox",
        *(f"1-{each[:10]}" for each in ingress),
        *(f"lb_{each[:9]}" for each in ingress),
    }
    return sorted(set(names) - own)


def remove_groups(group: str) -> None:
    """Control groups of containers that are gone."""
    give_up = time.monotonic() + 5
    while (tops := [*Path("/sys/fs/cgroup").glob(f"*/{group}")]) and time.monotonic() < give_up:
        for top in tops:
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()


def copy_data(template: Path, data: Path) -> None:
    """An engine's folder like the template's: layers are shared, what engines write to is not."""
    data.mkdir(parents=True)
    for entry in template.iterdir():
        how = "-al" if entry.name == "overlay2" else "-a"
        sh("cp", how, str(entry), str(data / entry.name))


def made_template() -> Path:
    """The folder of an engine that has loaded the node image; made once for each state of the package."""
    tag = images.tags().node
    template = CACHE / tag.rpartition(":")[2]
    if not (template / "complete").exists():
        for old in CACHE.glob("*"):
            shutil.rmtree(old)
        images.require()
        _load(tag, template)
        (template / "complete").touch()
    return template / "data"


def _load(tag: str, folder: Path) -> None:
    """With an engine of its own, in a network of its own."""
    folder.mkdir(parents=True)
    name = f"nwl{os.getpid()}t"
    host = Host(name, 1, folder)
    sh("ip", "netns", "add", host.netns)
    try:
        host.start()
        with subprocess.Popen(["docker", "save", tag], stdout=subprocess.PIPE) as save:
            sh(*host.command("docker", "load", "-q"), stdin=save.stdout)
        if save.returncode:
            raise RuntimeError(f"the image {tag} is not on this machine: run `make setup`")
        os.kill(child(child(host.pid)), signal.SIGTERM)  # in peace: its files are copied
        if host.process is not None:
            host.process.wait(END_S)
    finally:
        host.end()
        sh("ip", "netns", "del", host.netns)
        remove_groups(host.group)
    (host.folder / "data").rename(folder / "data")


def child(pid: int) -> int:
    """The only child of a process."""
    (only,) = _children(pid)
    return only


def remove_abandoned() -> None:
    """What labs have left whose own process was killed: engines end with it, namespaces and folders stay."""
    folders = (
        Path("/run/netns").glob("nwl*"),
        CACHE.parent.glob("nwl*"),
        Path("/sys/fs/cgroup").glob("*/nwl*"),
    )
    for path in chain(*folders):
        number = re.match(r"nwl(\d+)", path.name)
        if number is None or Path("/proc", number[1]).exists():
            continue
        if path.parent.name == "netns":
            sh("ip", "netns", "del", path.name, check=False)
        elif path.parent == CACHE.parent:
            shutil.rmtree(path, ignore_errors=True)
        else:
            remove_groups(path.name)


if __name__ == "__main__":
    with Lab(int(sys.argv[1]) if len(sys.argv) > 1 else 3) as made:
        for each in made.hosts:
            print(f"{each.name} {each.address}: {' '.join(each.command('bash'))}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
