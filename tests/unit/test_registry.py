"""A registry knows its names, and helps with those it does not know."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from testbed import registry as module
from testbed.errors import InputError
from testbed.registry import Registry


def _registry() -> Registry[int]:
    registry: Registry[int] = Registry("number", "narrows.numbers-of-tests")
    registry.add("two", 2)
    registry.add("one", 1)
    return registry


def test_entries_are_found_by_name() -> None:
    registry = _registry()
    assert registry.get("one") == 1
    assert list(registry) == ["one", "two"]
    assert "two" in registry
    assert "three" not in registry


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="number 'one' is registered twice"):
        _registry().add("one", 3)


def test_an_unknown_name_brings_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        _registry().get("tow", where="a.yaml:3")
    assert str(caught.value) == (
        "a.yaml:3: unknown number 'tow'. Did you mean 'two'? Known: one, two"
    )


def test_other_packages_add_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("pi", "math:pi", "narrows.numbers-of-tests")]

    def found(*, group: str, name: str | None = None) -> list[EntryPoint]:
        return [p for p in points if p.group == group and name in {None, p.name}]

    monkeypatch.setattr(module, "entry_points", found)
    registry = _registry()
    assert registry.names() == ["one", "pi", "two"]
    assert registry.get("pi") == pytest.approx(3.14159, abs=1e-4)
