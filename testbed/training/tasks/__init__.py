"""Tasks that ship: the data that is learned. Names are known without loading torch or any data."""

from testbed.training.tasks.base import tasks
from testbed.training.tasks.datasets import SHIPPED

for _task in SHIPPED:
    tasks.add(_task.name, _task)
