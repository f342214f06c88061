"""Observations of a step whose buckets travelled on a way of known α and β."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.control.base import LEVELS, Controller, LayerController, Observation
from testbed.control.cost_model import DensitySizes

LAYERS = {"last": 40_000.0, "middle": 160_000.0, "small": 500.0, "first": 10_000.0}
"""Elements, in the order in which they are ready."""
LEFT_S = {"last": 0.30, "middle": 0.20, "small": 0.10, "first": 0.0}
EXPONENTS = {"last": 0.5, "middle": 2.0, "small": 1.0, "first": 4.0}
"""Of the curves: the share left out is (1 − k)·(1 + c·k)^-1, convex and 0 at k = 1."""


def curve(energy: float, exponent: float) -> list[float]:
    return [energy, *((1 - k) / (1 + exponent * k * 100) for k in LEVELS)]


def observation(
    densities: Mapping[str, float], *, step: int = 0, start_s: float = 0.002, per_s: float = 1e-6,
    left_s: Mapping[str, float] = LEFT_S, packing: tuple[float, float] = (1e-4, 1e-8), workers: float = 2.0,
    energies: Mapping[str, float] | None = None, curves: bool = True,
) -> Observation:  # fmt: skip
    """A bucket for every layer; ``packing``: seconds of compression, and by element. Handed over one after the other."""
    sizes, buckets, free_s = DensitySizes(ratio=workers), {}, 0.0
    computed_s = max(left_s[name] for name in densities)
    for number, (name, density) in enumerate(densities.items()):
        many = LAYERS[name]
        up, down = sizes.up(many, density), sizes.down(many, density)
        compress_s = packing[0] + packing[1] * many
        begun_s = max(free_s, computed_s - left_s[name] + compress_s)
        free_s = begun_s + per_s * up
        buckets[name] = {
            "bucket": float(number), "start_s": begun_s, "elements": many, "sent": max(1.0, density * many), "left_s": left_s[name],
            "compress_s": compress_s, "delay_s": start_s + per_s * (up + down),
            "send_s": per_s * up, "bytes_up": up, "bytes_down": down,
        }  # fmt: skip
    told = (
        {n: curve((energies or {}).get(n, 1.0), EXPONENTS[n]) for n in densities} if curves else {}
    )
    delay_s = sum(one["delay_s"] for one in buckets.values())
    count = int(sum(one["bytes_up"] for one in buckets.values()))
    return Observation(
        step, 0, delay_s, 0.5, count, 0.1, step_s=0.3 + delay_s, buckets=buckets, curves=told
    )  # fmt: skip


def driven(controller: Controller, steps: int, names: Sequence[str] = (*LAYERS,), **more: Any) -> dict[str, float]:  # fmt: skip
    """Densities by name after so many steps, each taken with those that the controller asked for."""
    assert isinstance(controller, LayerController)
    for step in range(steps):
        asked = dict(zip(names, controller.densities(names), strict=True))
        controller.observe(observation(asked, step=step, **more))
    return dict(zip(names, controller.densities(names), strict=True))
