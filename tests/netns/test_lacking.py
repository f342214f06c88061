"""Whoever occupies the kernel while time is measured is seen (``tests/stolen.py``)."""

from __future__ import annotations

import subprocess

import pytest
from stolen import Processors

CABLES = 400


@pytest.mark.timed
def test_whoever_has_the_kernel_remove_many_devices_is_seen() -> None:
    """It does nothing else meanwhile, for anybody."""
    made = "".join(f"link add a{n} group 77 type veth peer name b{n}\n" for n in range(CABLES))
    command = ["unshare", "--net", "sh", "-c", "ip -batch - && ip link delete group 77"]
    with Processors() as processors:
        subprocess.run(command, input=made, text=True, check=True)
        lacking = processors.lacking()
    assert lacking.doubtful(), lacking
