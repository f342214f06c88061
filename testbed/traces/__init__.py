"""Bandwidth over time: reading recorded traces, writing them, and making synthetic ones. Pure."""

from testbed.traces.read import read
from testbed.traces.trace import RateTrace
from testbed.traces.write import write_csv

__all__ = ["RateTrace", "read", "write_csv"]
