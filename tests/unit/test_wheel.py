"""The wheel, away from the checkout: what it has with it, and what works with how few libraries."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from synthetic_run import Recipe, make_run
from wheel_rig import ROOT, Installed, build, short_run, source_archive

from testbed import __version__
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
        archive.extractall(tmp_path)
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


def test_smallest_installation_reads_records(smallest: Installed) -> None:
    run = str(make_run(smallest.folder / "records", Recipe(steps=3)))
    smallest.run("export", run, "--to", "csv")
    assert (smallest.folder / "export" / "steps.csv").is_file()
    drawn = ("timeline", run, "--figure", "step.png", "--out", "drawn.json")
    assert "Run `pip install 'narrows[report]'`" in smallest.run(*drawn, code=3).stderr
    assert not (smallest.folder / "drawn.json").exists(), "said before anything is made"
    smallest.run("timeline", run)
    assert json.loads((smallest.folder / "timeline.json").read_text())["traceEvents"]


def test_missing_extra_is_a_sentence_with_its_command(smallest: Installed) -> None:
    smallest.run("init", "third")
    scenario = "third/scenario.yaml"
    for words, extra in (
        (("run", scenario, "--fabric", "sim", "--no-figures"), "sim"),
        (("compare", scenario, "--fabric", "sim", "--seed", "1", "--no-figures"), "sim"),
        (("trace", "show", "third/traces/cloud.csv", "--out", "cloud.png"), "report"),
    ):
        said = smallest.run(*words, code=3).stderr
        assert f"Run `pip install 'narrows[{extra}]'`" in said and "Traceback" not in said
    assert not (smallest.folder / "runs").exists(), "said before anything is made"
    said = smallest.run("doctor", code=None).stdout  # 3 where the machine lacks something
    assert "Run `pip install 'narrows[docker,report,sim]'`" in said and "make " not in said


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


PAGE = ROOT / "docs" / "first-steps" / "wheel.md"
"""The page of the wheel, which its metadata carry."""


def test_description_of_the_package_needs_no_repository_beside_it(smallest: Installed) -> None:
    (metadata,) = smallest.site.glob("narrows-*.dist-info/METADATA")
    fields, _, description = metadata.read_text(encoding="utf-8").partition("\n\n")
    assert "Description-Content-Type: text/markdown" in fields
    assert description.strip() == PAGE.read_text(encoding="utf-8").strip()
    assert not re.findall(r"\]\((?!https?:)", description)


def test_page_of_the_wheel_has_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(set(extras) - {"flower"})


def commands() -> list[list[str]]:
    """The commands of the page that are the package's, in order."""
    lines = re.findall(r"^    testbed (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_commands_of_the_page_are_understood(smallest: Installed) -> None:
    for words in commands():
        if words[0].startswith("--"):
            smallest.run("--help")
        else:
            verb, *given = words
            said = smallest.run(verb, "--help").stdout
            assert all(word in said for word in given if word.startswith("--")), words


@pytest.mark.nightly
@pytest.mark.timeout(280)
def test_page_of_the_wheel_leads_to_a_report(wheel: Path, tmp_path: Path) -> None:
    """By its commands that need neither root, an engine nor a shell's files."""
    everything = Installed(tmp_path / "everything", wheel, "sim", "report", "docker")
    for words in commands():
        alone = words[0] in ("init", "validate", "plan", "report") or words[-1] == "sim"
        if alone:
            paths = [str(each) for word in words for each in _expanded(everything.folder, word)]
            everything.run(*paths)
    assert (everything.folder / "report" / "report.html").stat().st_size > 10_000


def _expanded(folder: Path, word: str) -> list[str]:
    """As a shell has it."""
    if "*" not in word:
        return [word]
    return [str(path.relative_to(folder)) for path in sorted(folder.glob(word))]


def test_workflows_do_what_the_makefile_and_the_ci_script_do() -> None:
    yaml = YAML(typ="safe", pure=True)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = {}
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        jobs = yaml.load(path)["jobs"].values()
        assert {job["runs-on"] for job in jobs} == {"ubuntu-24.04"}
        texts[path.stem] = "\n".join(step.get("run", "") for job in jobs for step in job["steps"])
        assert set(re.findall(r"\bmake ([a-z-]+)", texts[path.stem])) <= targets
    assert "bash .ci/run" in texts["ci"] and "make lower-bounds" in texts["ci"]
    assert "make docs" in texts["docs"] and "make release" in texts["release"]


def test_citation_has_the_version_and_licence_of_the_package() -> None:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = YAML(typ="safe", pure=True).load(ROOT / "CITATION.cff")
    assert cited["version"] == described["version"] == __version__
    assert cited["license"] == described["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
