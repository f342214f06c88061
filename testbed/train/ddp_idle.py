"""Parameters that no rank used in a step.

DistributedDataParallel leaves their gradients alone, whatever a hook returns for them: what was sent of
their residuals would be lost. Each message therefore marks the parameters whose gradient is all zeros at
its sender. What all ranks have marked is taken out of the messages, and goes back to who sent it.

Marks are one bit each, the first parameter's the lowest of the first byte, filled up to 8 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testbed.compress.base import Sparse
from testbed.compress.layout import Layout, Part
from testbed.compress.momentum import RESIDUAL
from testbed.compress.parts import key
from testbed.errors import WireError


def marks_bytes(parts: int) -> int:
    """Length of the marks of so many parameters; payloads behind it stay aligned."""
    return -(-parts // 64) * 8


def idle_marks(gradients: Sequence[Tensor], parts: int) -> bytes:
    """The marks of a message; without ``gradients`` none is set."""
    marks = np.zeros(8 * marks_bytes(parts), np.bool_)
    marks[: len(gradients)] = [not bool(gradient.any()) for gradient in gradients]
    return np.packbits(marks, bitorder="little").tobytes()


def idle_everywhere(marks: Sequence[memoryview], layout: Layout) -> list[Part]:
    """The parameters that all messages have marked. Raises WireError for a message that ends before."""
    if any(len(one) != marks_bytes(len(layout.parts)) for one in marks):
        raise WireError(f"a message ends within the marks of {len(layout.parts)} parameters")
    common = np.bitwise_and.reduce([np.frombuffer(one, np.uint8) for one in marks])
    bits = np.unpackbits(common, bitorder="little")
    return [part for part, marked in zip(layout, bits, strict=False) if marked]


def without(message: Sparse, parts: Sequence[Part]) -> Sparse:
    """``message`` with nothing in it of ``parts``."""
    if message.indices is None:
        values = message.values.clone()
        for part in parts:
            values[part.offset : part.offset + part.size] = 0.0
        return replace(message, values=values)
    keep = torch.ones_like(message.indices, dtype=torch.bool)
    for part in parts:
        keep &= ~_inside(message.indices, part)
    return Sparse(message.size, message.indices[keep], message.values[keep])


def restored(state: Mapping[str, Any], message: Sparse, parts: Sequence[Part]) -> dict[str, Any]:
    """A compressor's state as if nothing of ``parts`` had been sent in ``message``.

    Without a memory there is nothing to give it back to.
    """
    memory = dict(state["memory"])
    for part in parts:
        for name in {part.name, key(part.name, RESIDUAL)} & {*memory}:
            held = memory[name]
            memory[name] = held + _dense(message, part).view(held.shape).to(held.device)
    return {**state, "memory": memory}


def _dense(message: Sparse, part: Part) -> Tensor:
    """What ``message`` says of ``part``: float32 (part.size,)."""
    if message.indices is None:
        return message.values[part.offset : part.offset + part.size]
    inside = _inside(message.indices, part)
    found = message.values.new_zeros(part.size)
    found[message.indices[inside] - part.offset] = message.values[inside]
    return found


def _inside(indices: Tensor, part: Part) -> Tensor:
    return (indices >= part.offset) & (indices < part.offset + part.size)
