"""Every selector, value coding and memory that ships with Narrows, one line each, and the numbers
of value codings on the wire. A new one is a file and a line here.

None of these modules imports torch or numba: they use the tensors they are given, so that the names
are known (and a scenario validates) on a machine without them.
"""

from __future__ import annotations

from functools import cache

from testbed.compress.base import ValuesFactory, codings, memories, selectors
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
from testbed.compress.values.qsgd import Qsgd
from testbed.compress.values.sign import OneBit, Sign
from testbed.compress.values.ternary import Ternary
from testbed.errors import WireError

selectors.add("dense", Dense)
selectors.add("topk", TopK)
selectors.add("radix", Radix)
selectors.add("laplace", Laplace)
selectors.add("randk", RandK)
selectors.add("threshold", Threshold)
selectors.add("dgc", Dgc)
selectors.add("hierarchical", Hierarchical)
selectors.add("sidco-e", SidcoExponential)
selectors.add("sidco-p", SidcoPareto)
selectors.add("sidco-gp", SidcoGamma)
selectors.add("redsync-trimmed", Trimmed)
selectors.add("redsync-search", Search)
selectors.add("gaussian", Gaussian)
selectors.add("mstopk", MsTopK)
selectors.add("dryden", Dryden)

codings.add("fp32", Fp32)
codings.add("fp16", Fp16)
codings.add("bf16", Bf16)
codings.add("int8", Int8)
codings.add("maxmin", MaxMin)
codings.add("onebit", OneBit)
codings.add("sign", Sign)
codings.add("ternary", Ternary)
codings.add("qsgd", Qsgd)
codings.add("natural", Natural)
codings.add("lowrank", LowRank)

memories.add("none", NoMemory)
memories.add("feedback", ErrorFeedback)
memories.add("dgc", MomentumCorrection)


def coding_of(code: int) -> ValuesFactory:
    """Raises WireError for a number that nobody has."""
    if code not in _by_code():
        _by_code.cache_clear()  # it may have been registered since
    try:
        return _by_code()[code]
    except KeyError:
        raise WireError(f"unknown value coding {code}") from None


@cache
def _by_code() -> dict[int, ValuesFactory]:
    """Raises ValueError where two codings have one number, or one has a number that is no byte."""
    found: dict[int, ValuesFactory] = {}
    for name in codings:
        coding = codings.get(name)
        if coding.code in found or not 0 <= coding.code < 256:
            raise ValueError(f"value coding {name!r} cannot have the number {coding.code}")
        found[coding.code] = coding
    return found
