"""The exchange benchmark once, short: over the network, against the bare link, with nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_rig import measured

from testbed.bench.exchange.cases import EXCHANGES, through_server

FIELDS = {
    "exchange", "nodes", "bytes", "link", "rounds_per_s", "line_rate_fraction", "p99_ms", "cpu_s_per_gb",
}  # fmt: skip


def most(name: str) -> float:
    """The phases through a server may go on at once; all others use the same link directions one after the other."""
    phases = 2 if name in EXCHANGES and EXCHANGES[name].loads is through_server else 1
    return 1.03 * phases


@pytest.mark.nightly
@pytest.mark.timed
@pytest.mark.judged
@pytest.mark.timeout(600)
def test_every_exchange_once(state: Path, tmp_path: Path) -> None:
    names = tuple(EXCHANGES)
    links = ("--link", "unshaped", "--link", "50 Mbit/s")
    found, _ = measured("exchange", "--nodes", "3", "--bytes", "400000", *links, out=tmp_path)
    assert found["machine"]["cpu"]["count"] >= 1
    rows = {(row["exchange"], row["link"]): row for row in found["results"]}
    assert set(rows) == {(name, link) for name in names for link in ("unshaped", "50 Mbit/s")}
    for (name, link), row in rows.items():
        assert set(row) >= FIELDS
        assert row["failures"] == 0, row
        assert row["rounds_per_s"] > 0
        if link != "unshaped":
            assert 0.75 < row["line_rate_fraction"] < most(name), row
        assert (row["line_rate_fraction"] is None) == (link == "unshaped")
        assert name == "iperf3" or row["carried"] > 1.0
    assert not list(state.glob("*.journal"))
