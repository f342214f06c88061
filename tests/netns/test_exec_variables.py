"""``testbed exec --env`` and ``--env-file`` in namespaces, and what a job has of the caller's environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from secret_rig import SETTING, assert_kept, start

pytestmark = pytest.mark.timeout(180)


def test_a_secret_is_seen_by_the_job_alone(tmp_path: Path, nothing_left: None) -> None:
    assert_kept(*start(tmp_path), f"CALLERS_NAMED {SETTING}")
