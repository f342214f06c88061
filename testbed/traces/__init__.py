"""Bandwidth over time: reading recorded traces, writing them, and making synthetic ones. Pure."""

from testbed.traces.generate import write_csv
from testbed.traces.rate_trace import RateTrace
from testbed.traces.readers import read

__all__ = ["RateTrace", "read", "write_csv"]
