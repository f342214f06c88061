"""Images: what they are made from, when they are made anew, and which of them are removed."""

from __future__ import annotations

import hashlib
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from testbed.errors import MachineError
from testbed.host import images, paths
from testbed.host.images import archive, base_image_recipe, debian_mirror
from testbed.host.paths import ROOT


def test_code_changes_only_the_node_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = images.tags()
    (tmp_path / "module.py").write_text("changed = True")
    monkeypatch.setattr(images, "PACKAGE", tmp_path)
    after = images.tags()
    assert (before.base, before.runtime) == (after.base, after.runtime)
    assert before.node != after.node


@pytest.mark.parametrize(
    ("changed", "made_anew"),
    [
        ("base/base.toml", {"base", "runtime", "node"}),
        ("base/Dockerfile", {"base", "runtime", "node"}),
        ("runtime/Dockerfile", {"runtime", "node"}),
        ("wheels", {"runtime", "node"}),
        ("torch", {"runtime", "node"}),
        ("node/Dockerfile", {"node"}),
    ],
)
def test_an_image_is_made_anew_where_something_that_it_is_from_has_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: str, made_anew: set[str]
) -> None:
    shutil.copytree(paths.shipped("images"), tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(images, "shipped", lambda _, *parts: tmp_path.joinpath(*parts))
    for name, listed in (("wheels", "IMAGE"), ("torch", "TORCH_CPU")):
        shutil.copy(getattr(images, listed), tmp_path / name)
        monkeypatch.setattr(images, listed, tmp_path / name)
    before = images.tags()
    assert images.tags() == before
    with (tmp_path / changed).open("a") as file:
        file.write("# changed\n")
    after = images.tags()
    kinds = ("base", "runtime", "node")
    assert {kind for kind in kinds if getattr(before, kind) != getattr(after, kind)} == made_anew


def test_what_a_device_needs_is_in_images_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for present in (False, True):
        monkeypatch.setattr(images, "has_gpu", lambda present=present: present)
        found.append(images.tags())
    without, with_one = found
    assert without.base == with_one.base
    assert without.runtime != with_one.runtime and without.node != with_one.node


def test_missing_image_says_how_to_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images.docker_engine, "require", lambda: None)
    monkeypatch.setattr(images, "exists", lambda *_: False)
    with pytest.raises(MachineError, match="testbed setup"):
        images.require()


def test_prune_spares_other_checkouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine with two checkouts' images: ours in two versions, theirs on another runtime, and one that nobody uses."""
    mine = f"--filter=label={images.checkout_label()}"
    listed = {
        ("node", mine): "narrows/node:old narrows/node:new",
        ("node",): "narrows/node:old narrows/node:new narrows/node:theirs",
        (
            "runtime",
        ): "narrows/runtime:mine narrows/runtime:theirs narrows/runtime:left narrows/runtime:now",
        ("runtime", "--filter=since=narrows/runtime:mine"): "narrows/runtime:now",
        ("base",): "narrows/base:mine",
    }
    removed = []

    def engine(command: list[str], **_: object) -> str | None:
        if command[1:3] == ["image", "rm"]:
            removed.append(command[-1])
        if command[1:3] == ["image", "inspect"]:
            return {"theirs": "narrows/runtime:theirs"}.get(command[-1].partition(":")[2], "")
        return listed.get((command[-1].removeprefix("narrows/"), *command[4:-1]))

    monkeypatch.setattr(images, "answer", engine)
    images.remove_outdated(
        images.Tags("narrows/base:mine", "narrows/runtime:mine", "narrows/node:new")
    )
    assert removed == ["narrows/node:old", "narrows/runtime:left"]


def test_nodes_get_every_dependency_but_the_hosts() -> None:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = described["optional-dependencies"]
    listed = {*described["dependencies"], *extras["sim"], *extras["docker"], *extras["report"]}
    left_out = listed - set(images.requirements())
    assert {line.split(">")[0] for line in left_out} == {
        "adjusttext", "docker", "jinja2", "matplotlib", "protobuf",
    }  # fmt: skip


def test_wheels_follow_python_and_pins() -> None:
    from dataclasses import replace

    wanted = base_image_recipe()
    assert images.made_from(wanted) != images.made_from(replace(wanted, python="3.12"))


def test_a_registrys_image_is_pinned_by_its_digest() -> None:
    recipe = base_image_recipe()
    assert re.fullmatch(r"python:[\w.-]+@sha256:[0-9a-f]{64}", recipe.image)
    assert recipe.python in recipe.image and recipe.suite in recipe.image


def test_the_state_of_the_archive_is_its_date_and_hash(tmp_path: Path) -> None:
    lists = tmp_path / "var/lib/apt/lists"
    lists.mkdir(parents=True)
    text = b"Origin: Debian\nDate: Sat, 06 Sep 2025 09:56:12 UTC\nSHA256:\n"
    (lists / "debootstrap.invalid_dists_bookworm_Release").write_bytes(text)
    (lists / "debootstrap.invalid_dists_bookworm_InRelease").write_bytes(b"signed " + text)
    digest = hashlib.sha256(text).hexdigest()
    assert archive(tmp_path) == f"Sat, 06 Sep 2025 09:56:12 UTC sha256:{digest}"


@pytest.mark.parametrize(
    ("sources", "mirror"),
    [
        ("deb http://mirror.example/debian bookworm main", "http://mirror.example/debian"),
        ("deb [signed-by=/k.gpg] https://m.example/debian/ sid main", "https://m.example/debian"),
        ("Types: deb\nURIs: http://m.example/debian\nSuites: x", "http://m.example/debian"),
        ("# deb http://m.example/debian x main", None),
        ("deb http://archive.example/ubuntu noble main", None),
    ],
)
def test_mirror_is_the_hosts(sources: str, mirror: str | None) -> None:
    assert debian_mirror(sources) == mirror
