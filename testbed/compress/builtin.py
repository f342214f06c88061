"""Every selector, value coding and memory that ships with Narrows, and the numbers of value
codings on the wire. A new one is a file and an entry here.

None of these modules imports torch or numba: they use the tensors they are given, so that the names
are known (and a scenario validates) on a machine without them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from testbed.compress.base import Values, codings, codings_by_code, memories, selectors
from testbed.compress.memory import ErrorFeedback, MomentumCorrection, NoMemory
from testbed.compress.selectors.dgc import Dgc, Hierarchical
from testbed.compress.selectors.dryden import Dryden
from testbed.compress.selectors.gaussian import Gaussian
from testbed.compress.selectors.laplace import Laplace
from testbed.compress.selectors.mstopk import MsTopK
from testbed.compress.selectors.randk import RandK
from testbed.compress.selectors.redsync import Search, Trimmed
from testbed.compress.selectors.sidco import SidcoExponential, SidcoGamma, SidcoPareto
from testbed.compress.selectors.threshold import Threshold
from testbed.compress.selectors.topk import Dense, Radix, TopK
from testbed.compress.values.floats import Bf16, Fp16, Fp32
from testbed.compress.values.int8 import Int8
from testbed.compress.values.lowrank import LowRank
from testbed.compress.values.maxmin import MaxMin
from testbed.compress.values.natural import Natural
from testbed.compress.values.qsgd import Qsgd, QsgdElias
from testbed.compress.values.sign import OneBit, Sign
from testbed.compress.values.ternary import Ternary
from testbed.compress.values.thresholds import Thresholds
from testbed.errors import WireError

for _selector in (
    Dense, TopK, Radix, Laplace, RandK, Threshold, Dgc, Hierarchical,
    SidcoExponential, SidcoPareto, SidcoGamma, Trimmed, Search, Gaussian, MsTopK, Dryden,
):  # fmt: skip
    selectors.add(_selector.name, _selector)

for _coding in (
    Fp32, Fp16, Bf16, Int8, MaxMin, OneBit, Sign, Ternary, Qsgd, Natural, LowRank,
    QsgdElias, Thresholds,
):  # fmt: skip
    codings.add(_coding.name, _coding)

for _memory in (NoMemory, ErrorFeedback, MomentumCorrection):
    memories.add(_memory.name, _memory)


def coding_of(code: int) -> type[Values[Any]]:
    """Return the value coding of that number. Raises WireError for a number that nobody has."""
    if code not in _by_code():
        _by_code.cache_clear()  # it may have been registered since
    try:
        return _by_code()[code]
    except KeyError:
        raise WireError(f"unknown value coding {code}") from None


_by_code = cache(codings_by_code)
