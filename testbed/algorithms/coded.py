"""Coded exchanges: rows named ``<one of these>-auto``, patterns ``<one of these>-r<r>``."""

from __future__ import annotations

from testbed.algorithms.algorithm import Algorithm


def _row(scheme: str, about: str) -> Algorithm:
    options = {"scheme": scheme, "r": "auto"}
    return Algorithm(scheme, exchange="coded", exchange_options=options, about=about)


CODED: dict[str, Algorithm] = {
    "cssgd": _row("literal", "CSSGD as published: a block for every r workers, sums of parts by multicast."),
    "replicated": _row("replicated", "Groups of r workers compute the same and each multicast a slice of it: uncoded."),
    "grouped": _row("grouped", "CSSGD in clusters of r + 1, then slices of the clusters' sums by multicast."),
    "combined": _row("combined", "Coded reduce-scatter in clusters of r + 1, then slices by multicast (Compressed CDC)."),
}  # fmt: skip
"""By the beginning of their names."""
