"""``testbed run`` with everything that a message is made of, over real sockets in namespaces."""

import pytest
from training_run import NODES, ROWS, STEPS, Trained

pytestmark = [pytest.mark.judged, pytest.mark.root, pytest.mark.timeout(300)]


def test_every_part_of_a_message_crosses_real_sockets(trained: Trained) -> None:
    runs = {name: trained.runs[name] for name in ROWS}
    for run in runs.values():
        assert len(run.payloads()) == 2 * STEPS
        assert set(run.done) == set(NODES)
        assert len({message["summary"]["parameters"] for message in run.done.values()}) == 1
    for step in runs["laplace-0.05+int8"].records("step"):
        assert step["selection"]["passes"] >= 1.0
    down = {name: run.records("step", "worker-0")[0]["bytes_down"] for name, run in runs.items()}
    assert down["onebit-double"] < down["qsgd-4bit"] / 15
    drawn = {path.name for path in trained.folder.glob("comparisons/*/figures/*")}
    assert {"density.png", "density.pdf", "density.csv"} <= drawn
