"""Every selector, value coding and memory that ships with Narrows, in one place. A new one is a file and a line here.

None of these modules imports torch or numba: they use the tensors they are given, so that the names are
known (and a scenario validates) on a machine without them.
"""

from __future__ import annotations

from testbed.compress.base import codings, memories, selectors
from testbed.compress.dense import Dense
from testbed.compress.feedback import Feedback
from testbed.compress.forget import Forget
from testbed.compress.momentum import MomentumCorrection
from testbed.compress.selectors.dgc import Dgc
from testbed.compress.selectors.dryden import Dryden
from testbed.compress.selectors.gaussian import Gaussian
from testbed.compress.selectors.hierarchical import Hierarchical
from testbed.compress.selectors.laplace import Laplace
from testbed.compress.selectors.mstopk import MsTopK
from testbed.compress.selectors.radix import Radix
from testbed.compress.selectors.randk import RandK
from testbed.compress.selectors.redsync import Search, Trimmed
from testbed.compress.selectors.sidco import SidcoExponential, SidcoGamma, SidcoPareto
from testbed.compress.selectors.threshold import Threshold
from testbed.compress.topk import TopK
from testbed.compress.values.fp32 import Fp32
from testbed.compress.values.half import Bf16, Fp16
from testbed.compress.values.int8 import Int8
from testbed.compress.values.lowrank import LowRank
from testbed.compress.values.maxmin import MaxMin
from testbed.compress.values.natural import Natural
from testbed.compress.values.onebit import OneBit
from testbed.compress.values.qsgd import Qsgd
from testbed.compress.values.sign import Sign
from testbed.compress.values.ternary import Ternary

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

memories.add("none", Forget)
memories.add("feedback", Feedback)
memories.add("dgc", MomentumCorrection)
