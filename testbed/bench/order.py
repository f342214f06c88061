"""In which order alternatives are measured: side by side, so that whatever drifts hits all of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def interleaved(alternatives: Sequence[T], repetitions: int) -> Iterator[tuple[int, T]]:
    """``(repetition, alternative)`` for all of them: A B C, C B A, A B C, …"""
    for repetition in range(repetitions):
        turn = alternatives if repetition % 2 == 0 else alternatives[::-1]
        for alternative in turn:
            yield repetition, alternative
