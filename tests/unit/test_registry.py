"""A registry knows its names, and helps with those it does not know."""

from __future__ import annotations

import json
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints, PathDistribution
from pathlib import Path

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


def _used_from(folder: Path, value: str, group: str = "narrows.numbers-of-tests") -> EntryPoint:
    """An entry point of a package that `pip install -e` left in its folder."""
    about = folder.parent / "mine-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: mine\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[{group}]\nseven = {value}\n")
    direct = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    (about / "direct_url.json").write_text(json.dumps(direct))
    (point,) = PathDistribution(about).entry_points
    return point


def test_nodes_are_shown_the_folder_that_a_package_is_used_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    points = EntryPoints([_used_from(folder, "mine:seven"), EntryPoint("other", "x:y", "other")])
    monkeypatch.setattr(metadata, "entry_points", lambda: points)
    user_files.editable_folders.cache_clear()
    assert user_files.editable_folders() == (folder,)
    assert str(folder) in [each.path for each in file_view.programs({})]
    user_files.editable_folders.cache_clear()


def test_a_package_whose_folder_is_out_of_sight_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    registry = _with_points(monkeypatch, [_used_from(folder, "no_such_module:seven")])
    with pytest.raises(InputError, match=f"{folder}, from which it is used .* without -e"):
        registry.get("seven")
    folder.mkdir()
    with pytest.raises(InputError, match="Mend or uninstall the package mine"):
        registry.get("seven")


def test_a_registry_says_which_package_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = _with_points(monkeypatch, [_used_from(tmp_path / "mine", "math:pi")])
    assert registry.package_of("seven") == "the package mine"
    assert registry.package_of("one") is None
