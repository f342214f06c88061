"""A scenario's profile against the model it trains, and both in words."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from testbed.algorithms import resolve
from testbed.compress.layout import Layer
from testbed.errors import InputError
from testbed.scenario.load import Loaded
from testbed.scenario.model import Train
from testbed.session.paces import in_words, paces_told, usual_pace_s
from testbed.session.spread import check_spread, layout_of


def layers_of(train: Train) -> list[Layer]:
    """Of the model that is trained; nothing is allocated. Loads torch."""
    return layout_of(train).layers()


def check_layers(loaded: Loaded) -> None:
    """Raises InputError where the profile's layers are not the model's."""
    if loaded.profile is None:
        return
    try:
        loaded.profile.profile().of([layer.name for layer in layers_of(loaded.scenario.train)])
    except InputError as error:
        raise InputError(error.message, where=f"{loaded.source}: train.profile") from None


def overlaps(loaded: Loaded) -> bool:
    """Whether any of a scenario's algorithms computes layer by layer."""
    return any(resolve(entry).overlap for entry in loaded.scenario.algorithms)


def check_fits(loaded: Loaded) -> None:
    """What only the model's layers tell, where torch is installed. Raises InputError as a run of the scenario does."""
    scenario = loaded.scenario
    with suppress(ImportError):  # without torch it is not known what they are
        check_layers(loaded)
        check_spread(scenario, map(resolve, scenario.algorithms), str(loaded.source))


def pacing(loaded: Loaded, *, by_layer: bool, virtual: bool = False) -> dict[str, Any] | None:
    """How computation is held, in model time; None: not at all.

    ``by_layer``: with overlap; without, nothing is shared, and so nothing is measured. ``virtual``: computation takes no
    time of its own there.
    """
    train, file = loaded.scenario.train, loaded.profile
    if (usual_s := usual_pace_s(loaded)) is None:
        return None
    return {
        "pace_s": usual_s,
        **({} if (own := paces_told(loaded)) is None else {"workers": own}),
        "profile": train.profile or "measured",
        "by_layer": by_layer,
        "source": _source(train.profile, by_layer, virtual) if file is None else file.source,
        "layers": None if file is None else len(file.layers),
        "own_s": None if file is None else file.total_s,
        "device": None if file is None else file.device,
    }


def _source(profile: str | None, by_layer: bool, virtual: bool) -> str | None:
    """Of the layers' shares, without a file; None where there are none."""
    if not by_layer:
        return None
    return "constant" if virtual or profile == "constant" else "measured"


def in_a_sentence(found: dict[str, Any] | None) -> str | None:
    """What ``pacing`` found, for people."""
    if found is None:
        return None
    to = (
        f"{1e3 * found['pace_s']:.4g} ms"
        if (own := found.get("workers")) is None
        else in_words(own)
    )
    held = f"computation is held to {to} a step"
    if not found["by_layer"]:
        return f"{held} in all: no algorithm overlaps it layer by layer{_of_a_file(found)}"
    if found["layers"] is None:
        return f"{held}, shared among layers {_SHARED[found['source']]}"
    return (
        f"{held}, shared among {found['layers']} layers as in {found['profile']}{_of_a_file(found)}"
    )


_SHARED = {
    "measured": "as measured on each node (on sim: the same for every layer)",
    "constant": "the same for every layer",
}


def _of_a_file(found: dict[str, Any]) -> str:
    if found["layers"] is None:
        return ""
    return f" ({found['source']}: {1e3 * found['own_s']:.4g} ms on {found['device']})"
