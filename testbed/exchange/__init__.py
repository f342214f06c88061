"""How gradients travel: the exchanges that ship, by name. Importing any module of this package adds
them all to ``base.exchanges``."""

from __future__ import annotations

from testbed.exchange.all_gather import MULTICAST, UNICAST
from testbed.exchange.base import exchanges
from testbed.exchange.coded.exchange import CODED
from testbed.exchange.gloo import ALL_GATHER, ALL_REDUCE, ALL_REDUCE_BF16, DDP
from testbed.exchange.parameter_server import PARAMETER_SERVER
from testbed.exchange.parameter_server_async import ASYNCHRONOUS
from testbed.exchange.parameter_server_backup import BACKUP
from testbed.exchange.ring_all_reduce import RING

exchanges.add("ps", PARAMETER_SERVER)
exchanges.add("ps-async", ASYNCHRONOUS)
exchanges.add("ps-backup", BACKUP)
exchanges.add("peers", UNICAST)
exchanges.add("multicast", MULTICAST)
exchanges.add("ring", RING)
exchanges.add("coded", CODED)
exchanges.add("allreduce", ALL_REDUCE)
exchanges.add("allreduce-bf16", ALL_REDUCE_BF16)
exchanges.add("allgather", ALL_GATHER)
exchanges.add("ddp", DDP)
