"""What a hook is asked for, as a row of the table of algorithms."""

from __future__ import annotations

from dataclasses import replace

from testbed.algorithms import Algorithm, check, resolve
from testbed.compress.recipe import Recipe
from testbed.control.base import controllers, watched
from testbed.errors import InputError


def row_of(algorithm: str | Algorithm | Recipe, density: float | None) -> Algorithm:
    """The checked row. Raises InputError where ``density``, its exchange or its controller do not suit."""
    if isinstance(algorithm, str):
        row = resolve(algorithm)
    elif isinstance(algorithm, Recipe):
        row = _of_recipe(algorithm)
    else:
        row = algorithm
    if row.exchange != "ps":
        raise InputError(
            f"algorithm {row.name!r} travels by {row.exchange!r}",
            hint="With DistributedDataParallel all ranks send their gradients to all others",
        )
    if density is not None:
        if row.controller != "fixed":
            raise InputError(
                f"algorithm {row.name!r}: its controller {row.controller!r} chooses the density"
            )
        row = replace(row, options={**row.options, "density": density})
    check(row)
    if asked := watched(controllers.get(row.controller)(seed=0, **row.options)):
        raise InputError(
            f"algorithm {row.name!r}: its controller {row.controller!r} watches {', '.join(sorted(asked))}",
            hint="A hook does not tell of that; run it in the testbed",
        )
    return row


def _of_recipe(recipe: Recipe) -> Algorithm:
    return Algorithm(
        "recipe",
        selector=recipe.selector.name,
        selector_options=dict(recipe.selector.options),
        values=recipe.values.name,
        values_options=dict(recipe.values.options),
        memory=recipe.memory.name,
        memory_options=dict(recipe.memory.options),
        buckets="layer" if recipe.layers else "whole",
        dense_below=recipe.dense_below,
    )
