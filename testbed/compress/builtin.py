"""Every selector and memory that ships with Narrows, in one place. A new one is a file and a line here.

None of these modules imports torch: they use the tensors they are given, so that the names are known
(and a scenario validates) on a machine without it.
"""

from __future__ import annotations

from testbed.compress.base import memories, selectors
from testbed.compress.dense import Dense
from testbed.compress.feedback import Feedback
from testbed.compress.forget import Forget
from testbed.compress.topk import TopK

selectors.add("dense", Dense)
selectors.add("topk", TopK)

memories.add("none", Forget)
memories.add("feedback", Feedback)
