"""The worked example of ``docs/how-to/adding-an-exchange.md`` does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from virtual_links import network
from virtual_run import carried_out

from testbed.compatibility import resolve
from testbed.errors import WireError
from testbed.exchange.base import Membership, exchanges
from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.node import VirtualNode, play
from testbed.records.run_directory import read_events
from testbed.scenario.model import Derived

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "adding-an-exchange.md").read_text()


def block(language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Names that are there after the page's code has run; its exchange is gone after the test."""
    monkeypatch.setattr(exchanges, "_own", dict(exchanges._own))
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block("python"), "adding-an-exchange.md", "exec", dont_inherit=True), names)
    return names


class Role:
    """One worker of ``sizes``; sends its number, ``size`` times."""

    def __init__(self, kind: Any, node: VirtualNode, own: int, sizes: list[int]) -> None:
        workers = range(len(sizes))
        names = {peer: f"worker-{peer}" for peer in workers}
        self._exchange = kind(node, Membership(own, (), workers, names, 10.0, last_step=1))
        self._vector = np.full(sizes[own], own, np.float32)

    def prepare(self) -> None:
        self._exchange.connect()

    def run(self) -> dict[str, Any]:
        ticket = self._exchange.submit(1, 0, self._vector.data.cast("B"))
        mean = np.frombuffer(ticket.wait().payload, np.float32).copy()
        self._exchange.close()
        return {"mean": mean, "bytes_up": ticket.travel.bytes_up}


def played(kind: Any, sizes: list[int]) -> dict[str, Any]:
    names = [f"worker-{rank}" for rank in range(len(sizes))]
    made = network(VirtualClock(), names)
    roles = {
        name: Role(kind, VirtualNode(VirtualEndpoint(made, rank, name), 1), rank, sizes)
        for rank, name in enumerate(names)
    }
    return dict(play(made, roles))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_chain_makes_the_mean(example: dict[str, Any], workers: int) -> None:
    results = list(played(example["ChainExchange"], [7] * workers).values())
    for result in results:
        assert result["mean"].tolist() == [(workers - 1) / 2] * 7
    ends = 0 if workers == 1 else 7 * 4 + 40
    assert [results[0]["bytes_up"], results[-1]["bytes_up"]] == [ends, ends]


def test_the_chain_refuses_another_size(example: dict[str, Any]) -> None:
    with pytest.raises(WireError, match=r"\d+ B of worker-0 in step 1, not 32 B"):
        played(example["ChainExchange"], [7, 8])


def test_the_scenario_trains_as_with_everybodys_gradient(tmp_path: Path) -> None:
    entry = Derived.model_validate({"name": "chain", "from": "none", "exchange": "chain"})
    assert resolve(entry).exchange == "chain"
    runs = {run["algorithm"]: run for run in carried_out(tmp_path, block("yaml")).runs}
    assert {run["verdict"] for run in runs.values()} == {"valid"}
    losses = {
        name: [step["loss"] for step in read_events(Path(run["dir"]))["step"]]
        for name, run in runs.items()
    }
    assert losses["chain"] == pytest.approx(losses["ssgd"], abs=1e-4)


def test_the_entry_point_names_what_the_page_defines(example: dict[str, Any]) -> None:
    assert re.search(r'chain = "my_package\.chain:(\w+)"', block("toml"))[1] in example  # type: ignore[index]
