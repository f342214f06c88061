"""Carry out many ``testbed`` commands, each in a fork of one process that has imported the command already.

    python hostile_commands.py < FILES

Each line of FILES names a JSON file with cases by name: ``{"arguments", "folder", "variables", "terminal", "limit_s", "interrupt",
"lock", "plant"}``, all but the first optional. ``terminal``: standard output is a terminal. ``interrupt``: SIGINT once this
text was said. ``lock``: a file that somebody else has locked; ``plant``: a path, and where a link there leads.

The cases of a file are tried one after the other, those of several files side by side. For each case a line
``[name, {"code", "said"}]`` is appended to the same path with ``.results`` as its suffix; once all have been tried, the path
is printed. A case that lasts longer than its limit is killed, has ``"late"`` as its code, and is the last of its file.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import json
import os
import platform
import pty
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

KEY = b"hostile-list"
KEY_CALLS = {"x86_64": (248, 250), "aarch64": (217, 219)}
"""add_key and keyctl."""
_SESSION, _JOIN = -3, 1
LATE = "late"
_LIMIT_S = 150.0
"""The longest case waits for 10 s, and needs 3 s of a processor. All are waited for as long as each of them is in time."""
MODULES = (
    "testbed.cli.exec", "testbed.cli.validate", "testbed.cli.report", "testbed.cli.run", "testbed.runner.exec.run", "testbed.scenario.load",
    "testbed.runner.comparison", "testbed.comm_trace.trace", "analysis.report", "analysis.figures",
    "matplotlib.backends.backend_pdf", "fontTools.subset", "typer.rich_utils",
)  # fmt: skip
"""What most of the commands import."""


def plant_key() -> None:
    """Put a secret into a session keyring of this process's own, which every program that it starts inherits."""
    library, numbers = ctypes.CDLL(None), KEY_CALLS.get(platform.machine())
    if numbers is not None:
        add, control = numbers
        library.syscall(control, _JOIN, KEY)
        library.syscall(add, b"user", KEY, b"secret", 6, ctypes.c_int(_SESSION))


def become(case: dict[str, Any], output: int) -> None:
    """In the fork: be the command."""
    from testbed.cli import main

    os.setsid()
    for number in (1, 2):
        os.dup2(output, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = os.fdopen(1, "w", errors="replace")
    sys.stderr = os.fdopen(2, "w", errors="replace")
    os.chdir(case.get("folder", "."))
    os.environ.update(case.get("variables", {}))
    code = 70
    try:
        main(case["arguments"])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def carried_out(case: dict[str, Any]) -> dict[str, Any]:
    """What a command said, and how it ended."""
    reading, writing = pty.openpty() if case.get("terminal") else os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        become(case, writing)
    os.close(writing)
    said, give_up = b"", time.monotonic() + case.get("limit_s", _LIMIT_S)
    waited_for = case.get("interrupt", "").encode()
    late = False
    while True:
        if select.select([reading], [], [], 0.05)[0]:
            try:
                more = os.read(reading, 1 << 16)
            except OSError:  # of a terminal whose other side is closed
                more = b""
            if not more:
                break
            said += more
        if waited_for and waited_for in said:
            os.kill(pid, signal.SIGINT)
            waited_for = b""
        if time.monotonic() > give_up:
            late = True
            os.killpg(pid, signal.SIGKILL)
            break
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"code": LATE if late else status, "said": said.decode(errors="backslashreplace")}


def prepared(case: dict[str, Any]) -> dict[str, Any]:
    """The same with what somebody else has done before."""
    if "plant" in case:
        path, target = map(Path, case["plant"])
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        try:
            return carried_out(case)
        finally:
            path.unlink()
    if "lock" not in case:
        return carried_out(case)
    with Path(case["lock"]).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return carried_out(case)


def try_all(cases: Path) -> None:
    """In another fork: try the cases of a file, until one is late."""
    for name, case in json.loads(cases.read_text()).items():
        result = prepared(case)
        with cases.with_suffix(".results").open("a") as results:
            print(json.dumps([name, result]), file=results)
        if result["code"] == LATE:
            break


if __name__ == "__main__":
    plant_key()
    for module in MODULES:  # once, for all forks
        importlib.import_module(module)
    for line in sys.stdin:
        if os.fork() == 0:
            try:
                try_all(Path(line.rstrip("\n")))
            except Exception:
                traceback.print_exc()
            finally:
                os.write(1, line.encode())
                os._exit(0)
