"""Which kernel tests of impairments run on: this one, or a guest's."""

from __future__ import annotations

import functools
import os

from testbed.errors import MachineError
from testbed.host.uml import guest
from testbed.links.capabilities import probe


@functools.cache
def has_netem() -> bool:
    """Whether this kernel has netem, and this user may have it."""
    return os.geteuid() == 0 and "netem" in probe()


@functools.cache
def lacks_guest() -> str:
    """Why no guest can be booted here; empty when it can."""
    try:
        guest.require()
    except MachineError as error:
        return str(error)
    return ""
