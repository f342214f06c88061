"""What an algorithm says of compression: which selector, values and memory, and with which options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from typing import Any, TypeVar

from testbed.compress.base import Memory, Selector, Values, codings, memories, selectors
from testbed.compress.layout import Layout
from testbed.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Choice:
    """A registered name and what its class is made with."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the buckets of one worker are compressed."""

    selector: Choice = Choice("dense")
    values: Choice = Choice("fp32")
    memory: Choice = Choice("none")
    layers: bool = False
    """Every parameter by itself, with a density, thresholds and scales of its own."""
    dense_below: int = 0
    """With ``layers``: parameters of fewer elements are sent whole and exact."""

    def for_part(self, size: int) -> Recipe:
        """With ``layers``: what a parameter of ``size`` elements is compressed with.

        A small one keeps its memory: what a checkpoint of another bucketing holds for it is then sent.
        """
        if size >= self.dense_below:
            return self
        return replace(self, selector=Choice("dense"), values=Choice("fp32"))

    def check(self) -> None:
        """Raise InputError unless every part exists and takes its options."""
        layout = Layout.whole("gradient", 1)
        self.make_selector()
        self.make_values(layout)
        self.make_memory(layout)

    def make_selector(self) -> Selector:
        """A selector for one bucket."""
        return _made("selector", selectors.get(self.selector.name), self.selector)

    def make_values(self, layout: Layout) -> Values:
        """A value coding for one bucket."""
        return _made("value coding", codings.get(self.values.name), self.values, layout)

    def make_memory(self, layout: Layout) -> Memory:
        """A memory for one bucket."""
        return _made("memory", memories.get(self.memory.name), self.memory, layout)


def _made(noun: str, factory: Callable[..., T], choice: Choice, *given: Layout) -> T:
    """What ``factory`` makes. Raises InputError, with the options there are, for any other."""
    asked = signature(factory)
    try:
        asked.bind(*given, **choice.options)
        return factory(*given, **choice.options)
    except (TypeError, ValueError, OverflowError) as error:  # an option it does not have, or lacks,
        # or one of another type
        raise InputError(
            f"{noun} {choice.name!r}: {error}",
            hint=_options(list(asked.parameters.values())[len(given) :]),
        ) from error


def _options(parameters: list[Parameter]) -> str:
    """What a class can be made with, for people."""
    if not parameters:
        return "It has no options"
    defaults = {p.name: "needed" if p.default is p.empty else p.default for p in parameters}
    known = ", ".join(f"{name} ({default})" for name, default in defaults.items())
    return f"Options and their defaults: {known}"
