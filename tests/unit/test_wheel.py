"""The wheel, away from the checkout: what it has with it, and what works with how few libraries."""

from __future__ import annotations

import ast
import json
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from wheel_rig import ROOT, Installed, build, short_run, source_archive

from testbed.errors import EXTRAS
from testbed.host import images
from testbed.host.paths import files

CARRIED = ("images", "compose", "locks", "scenarios", "examples")
"""Folders of the checkout that the wheel has, too."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def smallest(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """With no extra: links only."""
    return Installed(tmp_path_factory.mktemp("smallest"), wheel)


def test_wheel_has_all_files_of_the_package_and_what_it_reads(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    code = {
        f"{part}/{path.relative_to(ROOT / part)}"
        for part in ("testbed", "analysis")
        for path in files(ROOT / part)
    }
    data = {
        f"testbed/data/{part}/{path.relative_to(ROOT / part)}"
        for part in CARRIED
        for path in files(ROOT / part)
    }
    assert names == code | data


def test_wheel_of_the_source_archive_is_the_same(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(source_archive(tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("narrows-*/")
    assert (
        (source / "tests").is_dir()
        and (source / "docs").is_dir()
        and (source / "Makefile").is_file()
    )
    again = build(tmp_path / "wheel", source)
    assert contents(again) == contents(wheel)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_images_and_compose_file_of_a_wheel_are_those_of_the_checkout(smallest: Installed) -> None:
    where = "import testbed.process as p; print(p.PACKAGE)"
    assert smallest.python(where) == str(smallest.site.resolve() / "testbed")
    assert (
        smallest.python("from testbed.host import images; print(images.tags().node)")
        == images.tags().node
    )
    label = smallest.python("from testbed.host import images; print(images.checkout_label())")
    assert label != images.checkout_label(), "the wheel must not remove the checkout's images"


def test_smallest_installation_checks_plans_and_looks_at_traces(smallest: Installed) -> None:
    smallest.run("init", "first")
    smallest.run("init", "second", "--example", "outage")
    assert "valid; 1 server, 4 workers" in smallest.run("validate", "first/scenario.yaml").stdout
    assert "valid" in smallest.run("validate", "second/outage.yaml").stdout
    assert "tc class add" in smallest.run("plan", "first/scenario.yaml").stdout
    plan = json.loads(
        smallest.run("plan", "first/scenario.yaml", "--fabric", "docker", "--json").stdout
    )
    assert images.tags().node in json.dumps(plan)
    shown = smallest.run("trace", "show", "first/traces/cloud.csv")
    assert "no figure" in shown.stdout and "pip install 'narrows[report]'" in shown.stderr
    assert not list(smallest.folder.glob("*.png"))
    assert "adatopk" in smallest.run("algorithms", "--json").stdout


def test_missing_extra_is_a_sentence_with_its_command(smallest: Installed) -> None:
    smallest.run("init", "third")
    scenario = "third/scenario.yaml"
    for words, extra in (
        (("run", scenario, "--fabric", "sim", "--no-figures"), "sim"),
        (("trace", "show", "third/traces/cloud.csv", "--out", "cloud.png"), "report"),
    ):
        said = smallest.run(*words, code=3).stderr
        assert f"Run `pip install 'narrows[{extra}]'`" in said and "Traceback" not in said


def test_every_extra_has_the_libraries_that_errors_name_with_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    needed = {"sklearn": "scikit-learn", "requests": "docker", "adjustText": "adjusttext"}
    for name, extra in EXTRAS.items():
        wanted = needed.get(name, name)
        assert any(line.startswith(f"{wanted}>") for line in extras[extra]), name


@pytest.mark.nightly
def test_run_in_virtual_time_from_a_wheel(wheel: Path, tmp_path: Path) -> None:
    """Kernels are compiled anew for it."""
    simulating = Installed(tmp_path / "simulating", wheel, "sim")
    records = short_run(simulating, "sim")
    assert json.loads((records / "manifest.json").read_text())["fabric"] == "sim"
    assert list(simulating.folder.glob("comparisons/*/table.csv"))


def test_no_code_asks_where_its_file_is() -> None:
    """Resources are read by importlib.resources: there the package need not lie in a checkout."""
    asking = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for part in ("testbed", "analysis")
        for path in (ROOT / part).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if (isinstance(node, ast.Name) and node.id == "__file__")
        or (isinstance(node, ast.Attribute) and node.attr == "__file__")
    ]
    assert asking == []
