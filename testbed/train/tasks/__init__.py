"""Tasks: the data that is learned. Names are known without loading torch or any data."""

from testbed.train.tasks import builtin as _builtin
from testbed.train.tasks.base import Samples, Task, TaskClass, tasks

__all__ = ["Samples", "Task", "TaskClass", "tasks"]
del _builtin
