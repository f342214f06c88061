"""A job that tries whatever its node's processes should not be able to do, and writes what came of it.

    python hostile_job.py PLAN

PLAN is JSON: ``{"sentinels", "outside", "records", "terminal", "pid", "planted"}``. Everything is written to ``tried-<rank>.json`` in the
working folder: by name ``["refused", why]`` or ``["done", what]``. The second process then will not end: it ignores SIGTERM,
has let go of its output, and has children in sessions of their own.
"""

import ctypes
import fcntl
import json
import os
import platform
import signal
import socket
import struct
import sys
import time

PLAN = json.loads(sys.argv[1])
RANK = int(os.environ["RANK"])
LIBC = ctypes.CDLL(None, use_errno=True)
KEY_CALLS = {"x86_64": 250, "aarch64": 219}
UNSHARE_NEW_USER_AND_MOUNTS = 0x10000000 | 0x00020000
DETACH, REMOUNT, BIND = 2, 32, 4096
NEW_NETWORK = 0x40000000
TYPE_FOR = 0x5412
"""TIOCSTI: have a terminal take a character for one that was typed."""
RECORDS = PLAN["records"]
tried = {}


def attempt(name, action):
    try:
        tried[name] = ["done", repr(action())]
    except (OSError, ValueError) as error:
        tried[name] = ["refused", str(error)]


def call(name, *arguments):
    """A function of the C library. Raises OSError where it fails."""
    result = getattr(LIBC, name)(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def meet(name):
    """Wait until both processes are there."""
    open(f"{name}-{RANK}", "w").close()
    give_up = time.monotonic() + 60
    while not os.path.exists(f"{name}-{1 - RANK}") and time.monotonic() < give_up:
        time.sleep(0.02)


def own_run():
    (run,) = (name for name in os.listdir(f"{RECORDS}/runs") if "_job_" in name)
    return f"{RECORDS}/runs/{run}"


def divert():
    """Put another folder, which leads outside, in the place of the records'."""
    run = own_run()
    os.rename(RECORDS, "moved")
    os.makedirs(os.path.dirname(run))
    os.symlink(PLAN["outside"], run)


def in_child(*actions):
    """Do it in a fork, which has ended then; raises OSError with what it could not do."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            for action in actions:
                action()
        except OSError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    os.waitpid(pid, 0)
    if text:
        raise OSError(text)


def as_root_of_its_own(*actions):
    """The same with every capability, in a user namespace of the child's own."""
    in_child(lambda: call("unshare", UNSHARE_NEW_USER_AND_MOUNTS), *actions)


def written(path):
    with open(path, "ab") as file:
        file.write(b"hostile\n")


def opened(path, flags):
    os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY))


def unmount(path):
    call("umount2", path.encode(), DETACH)


def remount(path):
    call("mount", b"none", path.encode(), None, ctypes.c_ulong(REMOUNT | BIND), None)


def uncovered():
    """What is below the mounts of the working folder, by a bind mount without them."""
    call("mount", os.getcwd().encode(), b"/tmp", None, ctypes.c_ulong(BIND), None)
    os.rename(f"/tmp/{RECORDS}", "/tmp/moved")


def read_memory(pid):
    with open(f"/proc/{pid}/maps") as maps:
        first = int(maps.readline().partition("-")[0], 16)
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(first)
        return memory.read(1)


def keys():
    number = KEY_CALLS[platform.machine()]
    key = call("syscall", number, 10, ctypes.c_int(-3), b"user", b"hostile-list", 0)
    room = ctypes.create_string_buffer(16)
    call("syscall", number, 11, key, room, 16)
    return room.value


def control_host():
    """The host's address on the control network: the first of it."""
    with socket.socket() as asked:
        request = struct.pack("256s", b"control")
        address = fcntl.ioctl(asked.fileno(), 0x8915, request)[20:24]
    return ".".join([*map(str, address[:3]), "1"])


def strangers():
    """Connections to the control network that say nothing, or nonsense, or too much."""
    host, refused, kept = control_host(), 0, []
    for number in range(200):
        one = socket.socket()
        one.settimeout(2)
        try:
            one.connect((host, 7077))
            one.sendall((b"", b"\xff" * 5000, b'{"type": "hello", "token": "x"}\n')[number % 3])
            kept.append(one)
        except OSError:
            refused += 1
    for one in kept:
        one.close()
    return refused, len(kept)


def marks():
    """Marks that are none; returns how many connections took them until one of the two ends closed."""
    connected = 0
    for line in (b"\0" * 70_000, b"[" * 60_000 + b"\n", b'{"what": "step", "ns": 1e999}\n' * 2000):
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(2)
        try:
            one.connect(os.environ["NARROWS_MARKS"])
            connected += 1
            one.sendall(b'{"what": "hello", "rank": 0, "local_rank": 0}\n' + line)
        except OSError:
            pass
        finally:
            one.close()
    return connected


def typed():
    """A command for the shell of whoever started the testbed."""
    terminal = os.open("/dev/tty", os.O_RDWR)
    fcntl.ioctl(terminal, TYPE_FOR, b"x")


def leave_group():
    """Into the groups above, where no limit of the node's holds."""
    left = 0
    with open("/proc/self/cgroup") as groups:
        for controllers, path in (line.strip().split(":", 2)[1:] for line in groups):
            for above in (path, os.path.dirname(path), "/"):
                for base in ("", controllers, "unified"):
                    try:
                        with open(f"/sys/fs/cgroup/{base}{above}/cgroup.procs", "w") as group:
                            group.write("0")
                        left += 1
                    except OSError:
                        pass
    if not left:
        raise OSError("no group takes it")
    return left


def speak_into_process_1():
    """Nonsense for everything that it has open."""
    for name in os.listdir("/proc/1/fd"):
        try:
            descriptor = os.open(f"/proc/1/fd/{name}", os.O_WRONLY | os.O_NONBLOCK)
            os.write(descriptor, b'{"pid": 1}\n')
        except OSError:
            pass


def powers():
    """What only who administers the machine may do."""
    for name, family, kind in (
        ("socket of virtual machines", 40, socket.SOCK_STREAM),
        ("packet socket", 17, socket.SOCK_RAW),
        ("raw socket", socket.AF_INET, socket.SOCK_RAW),
    ):
        attempt(name, lambda family=family, kind=kind: socket.socket(family, kind).close())
    attempt("host renamed", lambda: socket.sethostname("hostile"))
    attempt("clock set", lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()))
    attempt("new network", lambda: in_child(lambda: call("unshare", NEW_NETWORK)))
    attempt("file system opened", lambda: call("syscall", 430, b"tmpfs", 0))
    attempt("tree of mounts opened", lambda: call("syscall", 428, -100, b"/", 1))
    attempt("urgent", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
    attempt("root changed", lambda: in_child(lambda: os.chroot(".")))
    attempt("linked to /etc/passwd", lambda: os.link("/etc/passwd", "passwd"))
    attempt("typed on the terminal", typed)
    attempt("left its control group", leave_group)
    attempt("spoke into process 1", speak_into_process_1)


def share():
    """Something of every kind that processes of one machine can share."""
    kept = socket.socket(socket.AF_UNIX)
    kept.bind("\0hostile")
    kept.listen()
    LIBC.shmget(4711, 4096, 0o1666)
    for path in ("/dev/shm/hostile", "/tmp/hostile", "/var/tmp/hostile", "/run/hostile"):
        attempt(f"made {path}", lambda path=path: written(path))
    attempt("terminal made", lambda: os.ttyname(os.openpty()[1]))
    return kept


def reach():
    """What the other node has made."""
    attempt("abstract socket", lambda: socket.socket(socket.AF_UNIX).connect("\0hostile"))
    attempt("System V memory", lambda: call("shmget", 4711, 4096, 0))
    for path in ("/dev/shm/hostile", "/tmp/hostile", "/var/tmp/hostile", "/run/hostile"):
        attempt(f"other's {path}", lambda path=path: os.stat(path))
    attempt("other's terminal", lambda: opened("/dev/pts/0", os.O_RDWR))


def stay():
    """Not end: the last words are said, and whoever asks is not heard."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                break
            os._exit(0)
    for number in (0, 1, 2):
        os.close(number)
    while True:
        time.sleep(60)


def main():
    attempt("control group", lambda: open("/proc/self/cgroup").read())
    attempt("descriptors", lambda: sorted(map(int, os.listdir("/proc/self/fd")))[:-1])
    for path in PLAN["sentinels"]:
        attempt(f"wrote {path}", lambda path=path: written(path))
    for path in (
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",
    ):
        attempt(f"wrote {path}", lambda path=path: written(path))
    for path in ("/dev/mem", "/dev/kmsg", "/dev/loop-control"):
        attempt(f"opened {path}", lambda path=path: opened(path, os.O_RDWR))
    attempt("opened the terminal", lambda: opened(PLAN["terminal"], os.O_RDWR))
    attempt("device made", lambda: os.mknod("device", 0o020666, os.makedev(1, 1)))
    attempt("key read", keys)
    attempt("signalled the testbed", lambda: os.kill(PLAN["pid"], 0))
    attempt("memory of process 1", lambda: read_memory(1))
    attempt("killed process 1", lambda: in_child(lambda: os.kill(1, signal.SIGKILL)))
    powers()
    meet("first")
    kept = share() if RANK == 0 else None
    meet("shared")
    if RANK == 1:
        reach()
    meet("reached")
    del kept
    if RANK == 0:
        attempt("wrote its records", lambda: written(f"{own_run()}/manifest.json"))
        attempt("removed its log", lambda: os.rename(f"{own_run()}/log", f"{own_run()}/old"))
        attempt("moved its run", lambda: os.rename(own_run(), f"{RECORDS}/runs/moved"))
        attempt("moved all runs", lambda: os.rename(f"{RECORDS}/runs", f"{RECORDS}/moved"))
        attempt("diverted its records", divert)
        attempt("diverted them as root of its own", lambda: as_root_of_its_own(divert))
        attempt("unmounted its records", lambda: as_root_of_its_own(lambda: unmount(own_run())))
        attempt("uncovered its folder", lambda: as_root_of_its_own(uncovered))
        for path in ("/tmp", "/run", "/proc"):
            attempt(f"unmounted {path}", lambda p=path: as_root_of_its_own(lambda: unmount(p)))
        attempt("made / writable", lambda: as_root_of_its_own(lambda: remount("/")))
        attempt("took the link away", lambda: os.remove("link"))
        os.makedirs("link/runs", exist_ok=True)
        os.symlink(PLAN["outside"], f"link/runs/{os.path.basename(own_run())}")
        attempt("strangers", strangers)
        attempt("marks", marks)
        for name, text in PLAN["planted"].items():
            with open(name, "w") as file:
                file.write(text)
        print("\x1b]0;hostile\x07\x1b[2J\x1b[31mred\x1b[0m \x9b5n \u202etxt", flush=True)
    with open(f"tried-{RANK}.new", "w") as file:
        json.dump(tried, file)
    os.rename(f"tried-{RANK}.new", f"tried-{RANK}.json")
    if RANK == 1:
        stay()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    in_child(lambda: os.kill(-1, signal.SIGTERM))
    sys.exit(3)


main()
