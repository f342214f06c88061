"""A registry knows its names, and helps with those it does not know."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, EntryPoints, PathDistribution
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from testbed import registry as module
from testbed import user_files
from testbed.errors import InputError
from testbed.fabric import file_view
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


def _declare(monkeypatch: pytest.MonkeyPatch, **declared: str) -> Registry[int]:
    """A registry for which installed packages declare names with what is to be imported."""
    points = [EntryPoint(name, value, _registry().group) for name, value in declared.items()]
    return _with_points(monkeypatch, points)


def _with_points(monkeypatch: pytest.MonkeyPatch, points: list[EntryPoint]) -> Registry[int]:
    def found(*, group: str) -> list[EntryPoint]:
        return [point for point in points if point.group == group]

    monkeypatch.setattr(module, "entry_points", found)
    return _registry()


def test_other_packages_add_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = _declare(monkeypatch, pi="math:pi")
    assert registry.names() == ["one", "pi", "two"]
    assert registry.get("pi") == pytest.approx(3.14159, abs=1e-4)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nowhere_to_be_found:pi", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("math:pie", "AttributeError: module 'math' has no attribute 'pie'"),
    ],
)
def test_an_entry_point_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, value: str, reason: str
) -> None:
    registry = _declare(monkeypatch, pi=value)
    with pytest.raises(InputError) as caught:
        registry.get("pi", where="a.yaml:3")
    assert str(caught.value) == (
        f"a.yaml:3: number 'pi' cannot be imported from '{value}', an entry point of an installed "
        f"package: {reason}. Mend or uninstall an installed package"
    )
    assert registry.get("one") == 1


def test_the_package_of_an_entry_point_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info = tmp_path / "numbers_of_tests-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: numbers-of-tests\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{_registry().group}]\npi = nowhere:pi\none = math:e\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="entry point of the package numbers-of-tests: Module"):
        _registry().get("pi")
    with pytest.raises(InputError) as caught:
        _registry().get("one")
    assert str(caught.value) == (
        "number 'one' is declared by the package numbers-of-tests, and ships with Narrows. Give it "
        "another name in the group narrows.numbers-of-tests of that package's entry points"
    )


def test_a_name_that_two_packages_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    group = _registry().group
    points = [EntryPoint("pi", "math:pi", group), EntryPoint("pi", "math:tau", group)]
    registry = _with_points(monkeypatch, points)
    with pytest.raises(InputError, match="'pi' is declared by an installed package and an install"):
        registry.get("pi")
    assert registry.get("two") == 2


class _Finder:
    """Finds a module where it is, as an installation with ``-e`` leaves one in ``sys.meta_path``."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = paths

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return spec_from_file_location(name, self._paths[name]) if name in self._paths else None


def test_nodes_are_shown_modules_that_packages_are_used_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, single = tmp_path / "with space" / "whole_of_tests", tmp_path / "single_of_tests.py"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    single.touch()
    paths = {"whole_of_tests": package / "__init__.py", "single_of_tests": single}
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, _Finder(paths)])
    declared = {
        "whole_of_tests.below:x": "narrows.a", "single_of_tests:y": "narrows.b", "json:z": "narrows.b",
        "no_such_module:x": "narrows.b", "foreign:x": "other",
    }  # fmt: skip
    points = EntryPoints(EntryPoint("it", value, group) for value, group in declared.items())
    monkeypatch.setattr(metadata, "entry_points", lambda: points)
    user_files.package_paths.cache_clear()
    assert user_files.package_paths() == (single, package)
    monkeypatch.setattr(file_view, "is_trusted", lambda path: path != str(single))
    monkeypatch.setattr(file_view, "account", lambda: file_view.Account(1, 1))
    shown = {each.path for each in file_view.programs({}) if str(tmp_path) in each.path}
    assert shown == {str(package)}  # of root's nodes; nothing of its folder besides
    user_files.package_paths.cache_clear()


def test_a_registry_says_which_package_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (about := tmp_path / "mine-1.dist-info").mkdir()
    (about / "METADATA").write_text("Name: mine\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[narrows.numbers-of-tests]\nseven = math:pi\n")
    registry = _with_points(monkeypatch, list(PathDistribution(about).entry_points))
    assert registry.package_of("seven") == "the package mine"
    assert registry.package_of("one") is None
