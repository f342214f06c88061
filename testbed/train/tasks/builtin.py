"""The tasks that ship."""

from __future__ import annotations

from testbed.train.tasks.base import tasks
from testbed.train.tasks.cifar import Cifar10, Cifar100
from testbed.train.tasks.digits import Digits
from testbed.train.tasks.mnist import Mnist
from testbed.train.tasks.synthetic import Synthetic, SyntheticCifar

for _task in (Digits, Synthetic, SyntheticCifar, Mnist, Cifar10, Cifar100):
    tasks.add(_task.name, _task)
