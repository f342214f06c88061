"""The example of docs/ddp-hook.md: the page shows the file, and the file trains."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ddp_compressed.py"
PAGE = (ROOT / "docs" / "ddp-hook.md").read_text()


def test_the_page_shows_the_file() -> None:
    shown = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    code = EXAMPLE.read_text()
    for block in shown:
        assert block in code


def test_the_example_trains() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(EXAMPLE)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    found = re.search(r"accuracy (0\.\d+) after 300 steps; [\d.]+ MB sent, ([\d.]+)%", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) > 0.92
    assert float(found[2]) < 3
