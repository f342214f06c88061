"""Algorithms are rows of data: what is sent, what is remembered, how much, and how it travels.

A name is a row of ``ROWS``, matches one of ``PATTERNS``, adds parts to one of these (``SUFFIXES``), or is
given by a scenario that derives it.
"""

from testbed.algorithms.algorithm import Algorithm
from testbed.algorithms.fit import check, check_momentum, check_nodes
from testbed.algorithms.names import known, resolve
from testbed.algorithms.patterns import PATTERNS, Pattern
from testbed.algorithms.rows import ROWS
from testbed.algorithms.suffixes import SUFFIXES

__all__ = [
    "PATTERNS",
    "ROWS",
    "SUFFIXES",
    "Algorithm",
    "Pattern",
    "check",
    "check_momentum",
    "check_nodes",
    "known",
    "resolve",
]
