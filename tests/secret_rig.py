"""A secret for a job, in a file of variables, and wherever it can be seen but in the job."""

from __future__ import annotations

import hashlib
import json
import secrets
from contextlib import suppress
from pathlib import Path

from command_rig import Command

SCENARIO = """
name: some-job
nodes: {worker: {role: worker, count: 2}}
links: {default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}}
"""
SETTING = "OMP_DISPLAY_ENV"
"""Of a library."""
OF_THE_CALLERS = ("CALLERS_NAMED", "CALLERS_OWN", "NVIDIA_API_KEY", SETTING)
TOLD = (
    "import hashlib, os, time; print('told', hashlib.sha256(os.environ['TOKEN'].encode()).hexdigest(),"
    " os.environ['PLAIN'], flush=True);"
    f" print('arrived', *(name for name in {OF_THE_CALLERS!r} if name in os.environ), flush=True);"
    " time.sleep(300)"
)


def start(folder: Path, *options: str) -> tuple[Command, str]:
    """A job that is told a secret, and says its hash; and the secret, which the caller's environment has, too."""
    secret = secrets.token_urlsafe(24) + " $HOME 'quoted\" #end"
    (folder / "variables").write_text(f"# for the job\nTOKEN={secret}\nPLAIN=from the file\n")
    (folder / "scenario.yaml").write_text(SCENARIO)
    told = ["--env-file", str(folder / "variables"), "--env", "PLAIN=from the line"]
    told += ["--env", "CALLERS_NAMED"]
    scenario, out = str(folder / "scenario.yaml"), folder / "out"
    own = {**dict.fromkeys(OF_THE_CALLERS, secret), SETTING: "FALSE"}
    job = ["--", "python3", "-c", TOLD]
    return Command(out, "exec", scenario, *options, *told, *job, variables=own), secret


def assert_kept(command: Command, secret: str, arrived: str) -> None:
    """Wait until the job has been told, look where the secret is seen meanwhile, and in what is left.

    ``arrived``: what every process has of the caller's environment.
    """

    def said(word: str) -> list[str]:
        logs = command.folder.glob("runs/*/log/worker-*.log")
        lines = [line for log in logs for line in log.read_text().splitlines()]
        return [line for line in lines if line.startswith(word)]

    command.until(lambda: len(said("arrived")) == 2, 200.0)
    seen = [line for line in command_lines() if secret[:20] in line]
    command.process.terminate()
    _, out, err = command.finish(60.0)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    assert said("told") == [f"told {digest} from the line"] * 2
    assert said("arrived") == [f"arrived {arrived}"] * 2
    assert seen == []
    assert secret[:20] not in out + err
    kept = [path for path in command.folder.rglob("*") if path.is_file()]
    assert [path for path in kept if secret[:20].encode() in path.read_bytes()] == []
    (run,) = command.runs()
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["algorithm"]["variables"] == ["CALLERS_NAMED", "PLAIN", "TOKEN"]


def command_lines() -> list[str]:
    """Of every process, as ``ps`` shows them."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            lines.append(path.read_bytes().decode(errors="replace"))
    return lines
