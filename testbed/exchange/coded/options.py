"""What a coded exchange can be asked for, and whether a run's workers and batches allow it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from testbed.errors import InputError
from testbed.exchange.coded.choose import Way
from testbed.exchange.coded.groups import Groups
from testbed.exchange.coded.load import block_count, most_work
from testbed.exchange.coded.plan import Scheme
from testbed.exchange.coded.schemes import MOST_NODES, check, scheme
from testbed.options import Options, read

AUTO = "auto"
_MOST_BLOCKS = 4096
"""Of more, packets would be smaller than what it takes to send one."""
_MOST_GROUPS, _MOST_OF_ONE = 4000, 1000
"""Bridges keep a table of all; and what a node may be in (``net.ipv4.igmp_max_memberships``)."""


class CodedOptions(Options):
    """``scheme``: see ``schemes``. ``r``: how many workers compute each sample; ``auto``: what is best is found out.

    ``bottleneck``: for ``auto``, the direction of the links that limits.
    """

    scheme: Literal["literal", "replicated", "grouped", "combined"] = "literal"
    r: Literal["auto"] | int = Field(2)
    bottleneck: Way = "down"

    def redundancies(self, nodes: int) -> list[int]:
        """All that a run among ``nodes`` may use, the first one first."""
        return list(range(1, nodes)) if self.r == AUTO else [int(self.r)]


def coded_options(given: Mapping[str, Any]) -> CodedOptions:
    """``exchange_options`` as these. Raises InputError."""
    return read("exchange_options", CodedOptions, given)


def candidates(options: CodedOptions, nodes: int) -> list[Scheme]:
    """All that a run may use. Raises InputError where there is none for so many nodes."""
    return [scheme(options.scheme, nodes, r) for r in options.redundancies(nodes)]


def check_run(given: Mapping[str, Any], workers: int, batch: int) -> None:
    """Raise InputError unless ``workers`` with batches of ``batch`` samples can exchange so."""
    options = coded_options(given)
    check(options.scheme, workers, 1)
    for r in options.redundancies(workers):
        check(options.scheme, workers, r)
        _check_blocks(options.scheme, workers, r, batch)
    groups = Groups(candidates(options, workers), range(workers)).sets
    of_one = max(Counter(worker for group in groups for worker in group).values(), default=0)
    if len(groups) > _MOST_GROUPS or of_one > _MOST_OF_ONE:
        raise InputError(
            f"scheme {options.scheme!r} with r = {options.r} needs {len(groups)} multicast groups among {workers} "
            f"workers, {of_one} with one of them in it",
            hint=f"{_MOST_GROUPS} and {_MOST_OF_ONE} are possible: use another r or scheme, or fewer workers",
        )


def work(given: Mapping[str, Any], workers: int) -> float:
    """Samples that a worker computes at most, in shares of one without redundancy."""
    options = coded_options(given)
    if not 2 <= workers <= MOST_NODES:
        return 1.0
    return float(max(most_work(options.scheme, workers, r) for r in options.redundancies(workers)))


def _check_blocks(name: str, workers: int, r: int, batch: int) -> None:
    many, count = block_count(name, workers, r), workers * batch
    if many <= min(count, _MOST_BLOCKS):
        return
    raise InputError(
        f"scheme {name!r} with r = {r} cuts the mini-batch of {workers} workers, {count} samples, into {many} blocks",
        hint=f"Use a batch of at least {-(-many // workers)}, or another r"
        if many <= _MOST_BLOCKS
        else f"It can be {_MOST_BLOCKS} blocks at most: use another r or scheme",
    )
