"""What ``testbed doctor`` says of kernels that lack something."""

from __future__ import annotations

import pytest

from testbed.host import checks
from testbed.links.capabilities import Capabilities

KINDS = frozenset(
    {"veth", "bridge", "htb", "htb-charge", "bfifo", "netem", "netem-seed", "ifb", "ingress", "u32", "mirred"}
)  # fmt: skip


@pytest.mark.parametrize(
    ("lacks", "refused"),
    [
        (None, set()),
        ("netem", {"netem"}),
        ("ifb", {"in_network"}),
        ("u32", {"in_network"}),
        ("htb", {"queueing"}),
    ],
)
def test_every_check_names_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, lacks: str | None, refused: set[str]
) -> None:
    kernel = Capabilities(KINDS - {lacks}, realtime=True, congestion=("cubic",), kernel="6.0", privileged=True)  # fmt: skip
    monkeypatch.setattr(checks, "_kernel", lambda: kernel)
    found = {check: getattr(checks, check)() for check in ("queueing", "in_network", "netem")}
    assert {name for name, finding in found.items() if not finding.ok} == refused
    for name in refused:
        assert f"lacks {lacks}" in found[name].detail and found[name].fix
