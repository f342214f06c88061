"""The scripts of examples/ through ``testbed exec``, in a small form: what they learn, and what they put on their links."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from examples_rig import EXAMPLES, ROOT, model, size_bytes, train

pytestmark = [pytest.mark.judged, pytest.mark.timeout(240), pytest.mark.usefixtures("nothing_left")]
STEPS = 6
LEARNT = 4.9
"""Below log 128, what those score that have learnt nothing."""
RADIO = f"""
name: small-federation
nodes: {{server: {{role: server}}, worker: {{role: worker, count: 2}}}}
links:
  default: {{up: {{rate: 45 Mbit/s, queue: 400 kB}}, down: {{rate: 45 Mbit/s, queue: 400 kB}}}}
  server: {{up: {{rate: 300 Mbit/s}}, down: {{rate: 300 Mbit/s}}}}
events: [{{kind: trace, links: [worker], file: {ROOT}/scenarios/traces/lte.csv, at_end: loop}}]
congestion: cubic
"""
FEDERATED_BYTES = 4 * sum(inner * outer + outer for inner, outer in pairwise((64, 512, 512, 10)))


def sharded(steps: int) -> float:
    """What FSDP2 sends of a model of two, in models: halves are gathered before either pass and once at the end, and
    reduced as by an all-reduce; what is in no layer of its own stays gathered until the pass back."""
    whole = model()
    rest = 1 - size_bytes(whole.get_submodule("layers.layers")) / size_bytes(whole)
    return steps * (2 - rest / 2) + 1 / 2


@pytest.mark.parametrize(
    ("script", "arguments", "exchanged", "broadcast", "marked"),
    [
        # in models: a ring of two sends 2(n - 1)/n = 1 of it with every all-reduce
        pytest.param("char_ddp.py", (), STEPS, 1, False, marks=pytest.mark.nightly),
        pytest.param("char_fsdp2.py", (), sharded(STEPS), 0, True, marks=pytest.mark.nightly),
        pytest.param("char_local_sgd.py", ("--every", "3"), 2, 0, True, marks=pytest.mark.nightly),
        ("char_diloco.py", ("--every", "3"), 2, 1, True),
    ],
)
def test_bytes_are_those_of_the_collectives(
    tmp_path: Path, script: str, arguments: tuple[str, ...], exchanged: float, broadcast: int,
    marked: bool,
) -> None:  # fmt: skip
    command = ("python", str(EXAMPLES / script), *arguments, "--steps", str(STEPS))
    trained = train(tmp_path, "netns", *command)
    losses = trained.losses()
    assert losses.keys() == {0, 1} and max(losses.values()) < LEARNT
    for rank, models in enumerate((exchanged + broadcast, exchanged)):
        sent = trained.payload_bytes(f"worker-{rank}") / size_bytes(model())
        assert sent == pytest.approx(models, rel=0.03)
    every = [(rank, number + 1) for rank in range(2) for number in range(STEPS)]
    assert trained.steps() == (every if marked else [])


def test_a_hook_sends_a_hundredth_of_the_values(tmp_path: Path) -> None:
    command = ("python", str(EXAMPLES / "char_ddp_hook.py"), "laplace-0.01", "--steps", str(STEPS))
    trained = train(tmp_path, "netns", *command)
    losses = trained.losses()
    assert losses[0] == losses[1] < LEARNT
    sent = trained.payload_bytes("worker-1") / size_bytes(model()) / STEPS
    assert 0.01 < sent < 0.02  # 1 % of values of 4 B, each with up to 4 B that say where it belongs


@pytest.mark.nightly
@pytest.mark.optional
@pytest.mark.timeout(600)
def test_a_federated_round_over_radio_links(tmp_path: Path, with_flower: Path) -> None:
    script = str(EXAMPLES / "flower_round.py")
    trained = train(tmp_path, "netns", str(with_flower), script, "--rounds", "2", scenario=RADIO)
    accuracies = [float(found) for found in re.findall(r"accuracy (0\.\d+)", trained.output)]
    assert len(accuracies) == 3
    assert accuracies[-1] > accuracies[0] + 0.2
    for worker in ("worker-0", "worker-1"):
        for direction in ("up", "down"):
            carried = trained.payload_bytes(worker, direction)
            assert carried == pytest.approx(2 * FEDERATED_BYTES, rel=0.03)
    assert trained.steps() == [(0, 1), (0, 2)]
