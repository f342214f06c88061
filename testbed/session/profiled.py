"""A scenario's profile against the model it trains, and both in words."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from testbed.compress.layout import Layer, Layout
from testbed.errors import InputError
from testbed.scenario.load import Loaded
from testbed.scenario.model import Train


def layers_of(train: Train) -> list[Layer]:
    """Of the model that is trained; nothing is allocated. Loads torch."""
    from testbed.train.models import outline

    named = outline(train.model, train.task, train.width).named_parameters()
    return Layout.of((name, tuple(parameter.shape)) for name, parameter in named).layers()


def check_layers(loaded: Loaded) -> None:
    """Raises InputError where the profile's layers are not the model's."""
    if loaded.profile is None:
        return
    try:
        loaded.profile.profile().of([layer.name for layer in layers_of(loaded.scenario.train)])
    except InputError as error:
        raise InputError(error.message, where=f"{loaded.source}: train.profile") from None


def pacing(loaded: Loaded) -> dict[str, Any] | None:
    """How computation is held, in model time; None: not at all. Checks the layers where torch is installed."""
    train, file = loaded.scenario.train, loaded.profile
    if train.pace is None:
        return None
    with suppress(ImportError):  # without torch it is not known what they are
        check_layers(loaded)
    return {
        "pace_s": float(train.pace),
        "profile": train.profile or "measured",
        "source": (train.profile or "measured") if file is None else file.source,
        "layers": None if file is None else len(file.layers),
        "own_s": None if file is None else file.total_s,
        "device": None if file is None else file.device,
    }


def in_a_sentence(found: dict[str, Any] | None) -> str | None:
    """What ``pacing`` found, for people."""
    if found is None:
        return None
    held = f"computation is held to {1e3 * found['pace_s']:.4g} ms a step"
    if found["layers"] is None:
        how = {"measured": "as measured on each node", "constant": "the same for every layer"}
        return f"{held}, shared among layers {how[found['source']]}"
    return (
        f"{held}, shared among {found['layers']} layers as in {found['profile']} ({found['source']}: "
        f"{1e3 * found['own_s']:.4g} ms on {found['device']})"
    )
