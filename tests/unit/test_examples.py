"""The scripts of examples/: short, and they train, two processes at a time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from loopback import own_place
from script_ranks import outputs

Losses = Callable[..., dict[int, float]]
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LOSS = re.compile(r"rank (\d): loss ([\d.]+) on unseen text after 6 steps")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """Of a script with these arguments after six steps, by rank."""

    @cache
    def found(script: str, *arguments: str) -> dict[int, float]:
        folder = tmp_path_factory.mktemp("ranks")
        said = outputs(EXAMPLES / script, *arguments, "--steps", "6", folder=folder)
        return parsed("".join(said))

    return found


def parsed(said: str) -> dict[int, float]:
    return {int(rank): float(loss) for rank, loss in LOSS.findall(said)}


def test_the_plain_script_is_short_and_knows_nothing_of_the_testbed() -> None:
    text = (EXAMPLES / "char_ddp.py").read_text()
    assert len(text.splitlines()) <= 60
    assert "testbed" not in text and "narrows" not in text.lower()


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("char_ddp.py", ()),
        ("char_ddp_hook.py", ("bf16",)),
        ("char_ddp_hook.py", ("laplace-0.01",)),
        ("char_fsdp2.py", ()),
        ("char_diloco.py", ("--every", "3")),
    ],
)
def test_ranks_learn_together(losses: Losses, script: str, arguments: tuple[str, ...]) -> None:
    found = losses(script, *arguments)
    assert set(found) == {0, 1}
    assert found[0] == found[1] < 4.9  # log 128: without having learnt anything


# every day script_ranks.py starts the same script with the variables that torchrun sets
@pytest.mark.nightly
def test_torchrun_starts_them(losses: Losses) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(EXAMPLES / "char_ddp.py"), "--steps", "6"],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert parsed(done.stdout) == losses("char_ddp.py")


def test_powersgd_trains(losses: Losses) -> None:
    assert losses("char_ddp_hook.py", "powersgd").keys() == {0, 1}


def test_local_sgd_averages_now_and_then(losses: Losses) -> None:
    together, apart = (losses("char_local_sgd.py", "--every", every) for every in ("1", "100"))
    assert together[0] == together[1]
    assert apart[0] != apart[1]


def test_sharded_is_what_ddp_does(losses: Losses) -> None:
    assert losses("char_fsdp2.py")[0] == pytest.approx(losses("char_ddp.py")[0], abs=2e-3)


@pytest.mark.nightly
@pytest.mark.optional
@pytest.mark.timeout(600)
def test_a_federated_round(with_flower: Path) -> None:
    _, port = own_place()
    command = [str(with_flower), str(EXAMPLES / "flower_round.py"), "--rounds", "2", "--port", str(port)]  # fmt: skip
    started = [
        subprocess.Popen(
            command,
            env={**ENVIRONMENT, "RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"},
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(3)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=100)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    accuracies = [float(found) for found in re.findall(r"accuracy (0\.\d+)", outputs[0])]
    assert len(accuracies) == 3
    assert accuracies[-1] > accuracies[0] + 0.2
