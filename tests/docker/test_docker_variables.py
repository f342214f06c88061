"""Variables of jobs in containers: secrets from files, and values that no file can have."""

from __future__ import annotations

import json
import secrets
import subprocess
from pathlib import Path

import pytest
from secret_rig import assert_kept, start

from testbed.fabric.docker.fabric import launch

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300), pytest.mark.usefixtures("image")]


def test_a_secret_is_seen_by_the_job_alone(tmp_path: Path) -> None:
    assert_kept(*start(tmp_path, "--fabric", "docker"), "CALLERS_NAMED")


def test_every_value_arrives_as_it_is(image: str) -> None:
    given = {
        "PLAIN": "a=b c", "EMPTY": "", "LINES": "one\ntwo", "RETURN": "ends\r", "HASH": "# no comment",
        "LONG": "x" * 70_000, "QUOTED": "'\"$HOME`", "SPACES": "  in the middle  ", "WORD": "Größe",
    }  # fmt: skip
    say = "import json, os; print(json.dumps(dict(os.environ)))"
    name = f"narrows-test-{secrets.token_hex(4)}"
    start = ["docker", "run", "--detach", "--rm", "--name", name, "--network", "none", image]
    subprocess.run([*start, "tail", "-f", "/dev/null"], check=True, capture_output=True)
    try:
        with launch(name, ["python", "-c", say], given) as process:
            output, _ = process.communicate(timeout=60)
    finally:
        subprocess.run(["docker", "rm", "--force", name], check=True, capture_output=True)
    found = json.loads(output)
    assert {key: found.get(key) for key in given} == given
    line = " ".join(map(str, process.args))
    assert [key for key, value in given.items() if value and value in line] == []
