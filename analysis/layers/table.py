"""Bytes and density of every layer as numbers: a row per algorithm and layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.layers.shares import Shares, shares
from analysis.load import Run, by_algorithm

Row = dict[str, Any]
HEADINGS = ("Algorithm", "Layer", "Bucket", "Elements", "Up per step", "Share", "Asked k", "Achieved k", "Lowest", "Highest")  # fmt: skip


def rows(runs: Sequence[Run]) -> list[Row]:
    """Means over workers, steps and seeds, ``lowest`` and ``highest`` density of a step; of the runs with records of
    buckets. ``bytes_up``: per worker and step; ``share``: of the algorithm's bytes."""
    found: list[Row] = []
    for algorithm, same in by_algorithm(runs).items():
        known = [own for run in same if (own := shares(run)) is not None]
        if known:
            found += _rows(algorithm, known)
    return found


def _rows(algorithm: str, known: Sequence[Shares]) -> list[Row]:
    layers = known[0].layers
    length = np.mean([np.nanmean(own.bytes_up, axis=1) for own in known], axis=0)
    asked = np.mean([np.nanmean(own.density_asked, axis=1) for own in known], axis=0)
    density = np.concatenate([own.density for own in known], axis=1)
    return [
        {
            "algorithm": algorithm, "layer": layer, "bucket": known[0].buckets[place],
            "elements": known[0].elements[place], "bytes_up": float(length[place]),
            "share": float(length[place] / max(length.sum(), 1e-9)), "asked": float(asked[place]),
            "achieved": float(np.nanmean(density[place])), "lowest": float(np.nanmin(density[place])),
            "highest": float(np.nanmax(density[place])), "seeds": len(known),
        }
        for place, layer in enumerate(layers)
    ]  # fmt: skip


def cells_of(row: Row) -> list[str]:
    """A row as people read it, under ``HEADINGS``."""
    return [
        row["algorithm"], row["layer"], str(row["bucket"]), f"{row['elements']:,}",
        f"{row['bytes_up']:,.0f} B", f"{row['share']:.1%}",
        *(f"{row[key]:.3g}" for key in ("asked", "achieved", "lowest", "highest")),
    ]  # fmt: skip
