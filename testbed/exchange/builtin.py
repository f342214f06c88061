"""The exchanges that ship."""

from __future__ import annotations

from dataclasses import replace

from testbed.exchange.coded.exchange import CODED
from testbed.exchange.gloo import ALL_GATHER, ALL_REDUCE, ALL_REDUCE_BF16, DDP
from testbed.exchange.kinds import exchanges
from testbed.exchange.peers import MULTICAST, UNICAST
from testbed.exchange.ps import PARAMETER_SERVER
from testbed.exchange.ps_async import ASYNCHRONOUS
from testbed.exchange.ps_backup import BACKUP
from testbed.exchange.ps_leaving import LeavingHub, LeavingWorker
from testbed.exchange.ring import RING

exchanges.add("ps", replace(PARAMETER_SERVER, leaving=(LeavingWorker, LeavingHub)))
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
