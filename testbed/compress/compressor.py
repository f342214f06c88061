"""A selector and a memory joined: gradient in, payload out, and back."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from torch import Tensor, float32

from testbed.compress.base import Memory, Selector, Sparse, memories, selectors
from testbed.compress.finite import Parts, check_finite
from testbed.compress.staging import Staging
from testbed.compress.wire import decode, encode
from testbed.errors import GradientError, WireError
from testbed.node import Buffer


class Compressor:
    """Compresses buckets by name. One per worker: the memory in it belongs to that worker's gradients.

    ``parts`` names, per bucket, the parameters that its flat gradient is made of with their offsets;
    a bucket that is not in it is named as a whole in errors.
    """

    def __init__(
        self, selector: Selector, memory: Memory, parts: Mapping[str, Parts] | None = None
    ) -> None:
        self.selector, self.memory = selector, memory
        self._parts = dict(parts or {})
        self._staging = Staging()

    @classmethod
    def named(
        cls, selector: str, memory: str, parts: Mapping[str, Parts] | None = None
    ) -> Compressor:
        """From registered names. Raises InputError for unknown ones."""
        return cls(selectors.get(selector)(), memories.get(memory)(), parts)

    def compress(
        self, name: str, flat: Tensor, density: float, rng: Random
    ) -> tuple[Sparse, bytearray]:
        """What of bucket ``name`` travels, and its payload.

        ``flat``: float32 (n,), any device, any stride; it is not changed. The ``Sparse`` may view
        buffers that the next call reuses: its values hold only until then and, with error feedback
        and nothing left out, not even so long. The payload is the caller's.

        Raises GradientError for NaN or infinity (before the memory has taken in anything), a wrong
        shape or dtype; InputError for a density outside (0, 1].
        """
        if flat.dim() != 1 or flat.dtype != float32:
            raise GradientError(
                f"bucket {name!r} is {flat.dtype} {tuple(flat.shape)}: a flat float32 vector is needed"
            )
        flat = flat.detach().contiguous()
        check_finite(flat, self._parts.get(name, ((name, 0),)))
        compensated = self.memory.compensate(name, flat)
        sent = self.selector.select(compensated, density, rng)
        payload = encode(self._staging.to_host(sent))
        self.memory.update(name, compensated, sent)
        return sent, payload

    def decompress(self, payload: Buffer, out: Tensor) -> None:
        """Set ``out`` (float32 (n,), any device) to what ``payload`` holds, zeros elsewhere.

        Raises WireError for bytes that are no payload, or one of another size.
        """
        received = decode(payload)
        if received.size != out.numel():
            raise WireError(f"payload for {received.size} elements where {out.numel()} are needed")
        if received.indices is None:
            out.copy_(received.values)
            return
        out.zero_()
        out[received.indices.to(out.device)] = received.values.to(out.device)
