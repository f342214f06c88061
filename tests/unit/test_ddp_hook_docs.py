"""The example of docs/how-to/ddp-hook.md: the page shows the file, and the file trains."""

from __future__ import annotations

import re
from pathlib import Path

from script_ranks import outputs

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ddp_compressed.py"
PAGE = (ROOT / "docs" / "how-to" / "ddp-hook.md").read_text()


def test_the_page_shows_the_file() -> None:
    shown = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert any("register_comm_hook" in block for block in shown)
    code = EXAMPLE.read_text()
    for block in shown:
        assert block in code


def test_the_example_trains(tmp_path: Path) -> None:
    first, second = outputs(EXAMPLE, folder=tmp_path)
    found = re.search(r"accuracy (0\.\d+) after 300 steps; [\d.]+ MB sent, ([\d.]+)%", first)
    # gloo warns where addresses have no names
    said = [line for line in second.splitlines() if "[c10d] The hostname" not in line]
    assert found is not None and not said, first + second
    assert float(found[1]) > 0.92
    assert 1 < float(found[2]) < 3
