"""Setting up: what is decided, without doing it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import threading
import tomllib
import zipfile
from contextlib import nullcontext
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from testbed.errors import MachineError
from testbed.host import __main__ as setup
from testbed.host import images, packages, paths
from testbed.host.docker_engine import numbers
from testbed.host.images import base_image_recipe
from testbed.host.packages import CommandFailed, answer, run
from testbed.host.paths import CPU_INDEX, ROOT, attempts, install_torch, pinned_version
from testbed.host.uml import docker_engine as guest_disk


def test_runs_without_any_installed_library() -> None:
    code = "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]; import testbed.host.__main__"
    run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(ROOT)})


def test_command_failure_shows_its_last_words() -> None:
    with pytest.raises(CommandFailed, match="the end") as caught:
        run([sys.executable, "-c", "print('the end'); raise SystemExit(4)"], fix="do this")
    assert caught.value.exit_code == 3 and caught.value.fix == "do this"


def test_missing_command_is_no_traceback() -> None:
    assert answer(["narrows-has-no-such-command"]) is None
    with pytest.raises(CommandFailed, match="command not found"):
        run(["narrows-has-no-such-command"])


def test_hash_depends_on_names_and_content_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "__pycache__").mkdir()
    first = paths.of(tmp_path)
    (tmp_path / "__pycache__" / "a.pyc").write_text("compiled")
    os.utime(tmp_path / "a", (0, 0))
    assert paths.of(tmp_path) == first
    (tmp_path / "a").rename(tmp_path / "b")
    assert paths.of(tmp_path) != first


def test_hash_keeps_parts_apart() -> None:
    assert paths.of("ab", "c") != paths.of("a", "bc")


def test_stamp(tmp_path: Path) -> None:
    stamp = paths.Stamp(tmp_path / "sub" / "stamp", "one")
    assert not stamp.fresh()
    stamp.write()
    assert stamp.fresh() and not paths.Stamp(stamp.path, "two").fresh()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose programs are started before the system's."""
    (tmp_path / "programs").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "programs"


def program(path: Path, lines: str) -> None:
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


PROJECT = """
[project]
name = "x"
dependencies = ["numpy"]
[build-system]
requires = ["hatchling"]
[tool.other]
width = {width}
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One of a project of its own, of which nothing is set up."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    for name, folder in (("FOLDER", "locks"), ("VENV", ".venv"), ("_SOURCES", "kernels")):
        monkeypatch.setattr(paths, name, tmp_path / folder)
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(paths, "VENV_PYTHON", tmp_path / ".venv" / "python")
    (tmp_path / "pyproject.toml").write_text(PROJECT.format(width=1))
    (tmp_path / "locks" / "packages.txt").write_text("numpy==2.0.0\n")
    (tmp_path / "kernels" / "loops.py").write_text("a = 1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "text", "environment", "kernels"),
    [
        ("locks/packages.txt", "numpy==2.0.1\n", True, True),
        ("locks/torch-gpu.txt", "torch==2.0.0\n", True, True),
        ("pyproject.toml", PROJECT.format(width=1).replace("numpy", "scipy"), True, True),
        ("pyproject.toml", PROJECT.format(width=1).replace("hatchling", "flit"), True, True),
        ("pyproject.toml", PROJECT.format(width=2), False, False),
        ("kernels/loops.py", "a = 2\n", False, True),
        ("kernels/more.py", "b = 1\n", False, True),
        ("README.md", "changed", False, False),
    ],
)
def test_what_the_environment_and_compiled_kernels_are_made_from(
    checkout: Path, file: str, text: str, environment: bool, kernels: bool
) -> None:
    assert not paths.current()
    paths.VENV_PYTHON.touch()
    for stamp in (paths.stamp(), paths.kernels_stamp()):
        assert not stamp.fresh()
        stamp.write()
    assert paths.current() and paths.kernels_stamp().fresh()
    (checkout / file).write_text(text)
    assert paths.stamp().fresh() is paths.current() is not environment
    assert paths.kernels_stamp().fresh() is not kernels


def test_an_environment_is_of_one_python_and_one_place(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = paths.stamp().content
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version", "3.99")
        assert paths.stamp().content != first
    (checkout / "moved").mkdir()
    (checkout / "pyproject.toml").rename(checkout / "moved" / "pyproject.toml")
    monkeypatch.setattr(paths, "ROOT", checkout / "moved")
    assert paths.stamp().content != first


def test_kernels_are_compiled_once_for_each_state(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(paths, "run", commands.append)
    for text in ("a = 1\n", "a = 1\n", "a = 2\n"):
        (checkout / "kernels" / "loops.py").write_text(text)
        paths.ensure_kernels()
    assert [command[3] for command in commands] == [
        "testbed.compress.kernels.compilation",
        "compileall",
    ] * 2

    def fail(_: list[str]) -> None:
        raise CommandFailed(["python"], "no compiler")

    monkeypatch.setattr(paths, "run", fail)
    (checkout / "kernels" / "loops.py").write_text("a = 3\n")
    with pytest.raises(CommandFailed):
        paths.ensure_kernels()
    assert not paths.kernels_stamp().fresh(), "what failed is tried again"


def test_optional_packages_that_cannot_be_had_stop_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packages.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(packages, "have", lambda *_: True)
    monkeypatch.setattr(packages, "_exists", lambda _: True)
    with caplog.at_level("INFO", logger="testbed.host"):
        packages.offer((packages.Need("a thing", lambda: False, ("thing",)),), "what it is for")
    assert "what it is for" in caplog.text and "sudo apt-get install -y thing" in caplog.text


def test_torch_cpu_build_is_preferred_without_a_gpu() -> None:
    first, second, last = attempts(gpu=False)
    assert first == (paths.TORCH_CPU, [])
    assert second == (paths.TORCH_CPU, ["--extra-index-url", CPU_INDEX])
    assert last == (paths.TORCH_GPU, [])


def test_torch_cpu_build_is_avoided_with_a_gpu() -> None:
    assert attempts(gpu=True) == [(paths.TORCH_GPU, []), (paths.TORCH_CPU, [])]


@pytest.mark.parametrize(("gpu", "sources"), [(False, 3), (True, 2)])
def test_torch_falls_through_to_the_source_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool, sources: int
) -> None:
    monkeypatch.setattr(paths, "has_gpu", lambda: gpu)
    tries = attempts(gpu=gpu)
    exactly = "-q --require-hashes --no-deps -r"
    wanted = [" ".join([exactly, str(lock), *more]) for lock, more in tries]
    assert len(wanted) == sources
    pip, asked = tmp_path / "pip", tmp_path / "asked"
    for source in range(1, sources + 2):
        asked.unlink(missing_ok=True)
        program(pip, f'echo "$@" >> {asked}\ntest $(wc -l < {asked}) -eq {source}')
        with nullcontext() if source <= sources else pytest.raises(CommandFailed):
            assert install_torch([str(pip)]) == tries[source - 1][0]
        assert asked.read_text().splitlines() == wanted[:source]


def test_locks_name_everything_that_is_wanted_with_hashes() -> None:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = described["project"]["optional-dependencies"]
    listed = [*described["project"]["dependencies"], *described["dependency-groups"]["dev"]]
    listed += [line for extra in ("sim", "docker", "report") for line in extras[extra]]
    torch = paths.entries(paths.TORCH_GPU.read_text())
    for path, lines in (
        (paths.PACKAGES, [*listed, *described["build-system"]["requires"]]),
        (paths.IMAGE, [*images.requirements(), "pip"]),
    ):
        found = {}
        for entry in [*paths.entries(path.read_text()), *torch]:
            assert re.search(r" --hash=sha256:[0-9a-f]{64}\b", entry), entry
            found.setdefault(paths.name_of(entry), []).append(entry.split()[0].partition("==")[2])
        for line in lines:
            wanted = Requirement(line)
            versions = found[paths.name_of(wanted.name)]
            assert all(wanted.specifier.contains(version) for version in versions), line
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        assert found[name] == [version], "make lock"
    assert paths.TORCH_CPU.read_text().splitlines()[1] == f"torch=={pinned_version()}+cpu \\"


def test_pip_takes_no_file_whose_hash_is_not_in_a_lock(tmp_path: Path) -> None:
    wheel = tmp_path / "narrows_test_lock-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in (
            ("METADATA", "Metadata-Version: 2.1\nName: narrows-test-lock\nVersion: 1\n"),
            ("WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("RECORD", ""),
        ):
            archive.writestr(f"narrows_test_lock-1.dist-info/{name}", text)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    pip = [sys.executable, "-m", "pip", "download", "--no-index", "--find-links", str(tmp_path)]
    for known, taken in (
        (f" --hash=sha256:{digest}", True),
        (f" --hash=sha256:{'0' * 64}", False),
        ("", False),
    ):
        lock, target = tmp_path / "lock.txt", tmp_path / f"target{known}"
        lock.write_text(f"narrows-test-lock==1{known}\n")
        with nullcontext() if taken else pytest.raises(CommandFailed, match=r"(?i)hash"):
            run([*pip, "--dest", str(target), *paths.EXACTLY, "-r", str(lock)])
        assert target.exists() and bool(list(target.iterdir())) == taken


def test_setup_takes_no_module_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may call `testbed doctor --fix` in a folder of somebody else's."""
    commands: list[list[str]] = []

    locked: list[str] = []

    def note(command: list[str], **_: object) -> str:
        commands.append(list(command))
        if "install" in command and "-r" in command:
            assert set(paths.EXACTLY) <= set(command)
            locked.extend(paths.entries(Path(command[command.index("-r") + 1]).read_text()))
        return ""

    def fetch_torch(pip: list[str]) -> Path:
        wheels.mkdir()
        note(pip)
        return paths.IMAGE

    wheels = tmp_path / "wheels"
    for module in (paths, images):
        monkeypatch.setattr(module, "run", note)
    monkeypatch.setattr(paths, "VENV_PYTHON", tmp_path / "none")
    monkeypatch.setattr(paths, "current", lambda: False)
    monkeypatch.setattr(paths.packages, "install", lambda _: None)
    monkeypatch.setattr(paths.Stamp, "fresh", lambda _: False)
    monkeypatch.setattr(paths.Stamp, "write", lambda _: None)
    monkeypatch.setattr(paths, "cache", lambda name: tmp_path / name)
    monkeypatch.setattr(images, "install_torch", fetch_torch)
    paths.ensure()
    torch = paths.attempts(gpu=paths.has_gpu())[0][0]
    files = (paths.PACKAGES, torch)
    assert sorted(locked) == sorted(e for lock in files for e in paths.entries(lock.read_text()))
    paths.ensure_kernels()
    images.fetch(base_image_recipe())
    assert len(commands) == 9
    assert {tuple(command[1:3]) for command in commands} == {("-P", "-m")}
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("pip", "json"):
        (folder / f"{name}.py").write_text("raise SystemExit('planted')")
    for command in (commands[0][1:3], ["-m"]):
        done = subprocess.run(
            [sys.executable, *command, "pip", "--version"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ("planted" in done.stderr) == (command == ["-m"]), "the working directory counts"


@pytest.mark.parametrize(
    ("tree", "engines_code", "taken"), [(".", 0, True), ("none", 0, False), (".", 1, False)]
)
def test_a_base_image_is_taken_whole_or_not_at_all(
    tmp_path: Path, programs: Path, tree: str, engines_code: int, taken: bool
) -> None:
    """The engine is a program that keeps what it is given, and takes an empty archive, too."""
    program(programs / "docker", f"cat > {tmp_path}/layer.tar; exit {engines_code}")
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "hostname").write_text("base")
    with nullcontext() if taken else pytest.raises(CommandFailed, match="docker import"):
        images._import(tmp_path / "system" / tree, base_image_recipe(), "narrows/base:test")
    if taken:
        with tarfile.open(tmp_path / "layer.tar") as layer:
            assert sorted(layer.getnames()) == [".", "./hostname"]


@pytest.mark.root
def test_a_base_image_is_made_of_what_debian_has_signed(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two programs keep what they are told; Debian's keys are there."""
    program(programs / "debootstrap", f'printf "%s\\n" "$@" > {tmp_path}/told')
    program(programs / "docker", "cat > /dev/null")
    met = [packages.Need(need.name, lambda: True, need.packages) for need in packages.BASE_IMAGE]
    monkeypatch.setattr(packages, "BASE_IMAGE", tuple(met))
    images._debootstrap(base_image_recipe(), "narrows/base:test")
    told = (tmp_path / "told").read_text().splitlines()
    assert f"--keyring={packages.DEBIAN_KEYS}" in told and "--force-check-gpg" in told
    assert not [option for option in told if "no-check" in option]


def test_what_root_is_told_to_start_imports_nothing_from_the_working_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for make in (partial(images._debootstrap, base_image_recipe()), guest_disk._make):
        with pytest.raises(MachineError) as caught:
            make("narrows/base:test")
        assert f"sudo {sys.executable} -P -m testbed setup" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("20.10.24+dfsg1", (20, 10, 24)), ("v2.29.7-desktop.1", (2, 29, 7)), ("", ())],
)
def test_versions(text: str, parsed: tuple[int, ...]) -> None:
    assert numbers(text) == parsed


def test_packages_are_named_exactly_to_those_who_may_not_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need = packages.Need("a thing", lambda: False, ("thing-new", "thing-old"))
    monkeypatch.setattr(packages.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(packages, "have", lambda *_: True)
    monkeypatch.setattr(packages, "_exists", lambda package: package == "thing-old")
    with pytest.raises(MachineError, match="sudo apt-get install -y thing-old") as caught:
        packages.install((need,))
    assert caught.value.exit_code == 3


def test_nothing_is_installed_when_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "run", lambda *_, **__: pytest.fail("apt-get was called"))
    packages.install((packages.Need("python", lambda: True, ("python3",)),))


def test_environment_and_images_are_made_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=60)
    monkeypatch.setattr(paths, "create", lambda: None)
    monkeypatch.setattr(paths, "ensure_kernels", lambda: None)
    monkeypatch.setattr(packages, "install", lambda _: None)
    monkeypatch.setattr(setup.engine_module, "ensure", lambda: None)
    monkeypatch.setattr(paths, "ensure", both.wait)
    monkeypatch.setattr(images, "ensure", both.wait)
    setup.everything()


def test_where_a_part_of_setup_fails_the_other_begins_no_more_commands(tmp_path: Path) -> None:
    def fail() -> None:
        raise MachineError("the first error")

    def go_on() -> None:
        failed.wait(60)
        run(["touch", str(tmp_path / "begun")])

    failed = packages._FAILED
    with pytest.raises(MachineError, match="the first error"):
        packages.side_by_side(go_on, fail)
    assert not (tmp_path / "begun").exists()
    packages.side_by_side(lambda: run(["touch", str(tmp_path / "again")]))
    assert (tmp_path / "again").exists()


def test_packages_are_chosen_from_lists_that_were_fetched(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh machine, which knows no package before its lists are there."""
    fetched, asked = tmp_path / "fetched", tmp_path / "asked"
    program(programs / "apt-cache", f"test -e {fetched} && echo '  Candidate: 1.0'")
    program(programs / "apt-get", f'test $1 = update && touch {fetched}; echo "$@" >> {asked}')
    monkeypatch.setattr(packages.os, "geteuid", lambda: 0)
    packages._fetch_lists.cache_clear()
    packages.install((packages.Need("a thing", lambda: False, ("thing-new", "thing-old")),))
    packages._fetch_lists.cache_clear()
    update, install = asked.read_text().splitlines()
    assert update.split()[0] == "update" and install.split()[-1] == "thing-new"


def test_lists_of_packages_are_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []
    monkeypatch.setattr(packages.os, "geteuid", lambda: 0)
    monkeypatch.setattr(packages, "have", lambda *_: True)
    monkeypatch.setattr(packages, "_exists", lambda _: True)
    monkeypatch.setattr(packages, "run", lambda command, **_: commands.append(command[1]))
    packages._fetch_lists.cache_clear()
    for name in ("one", "two"):
        packages.install((packages.Need(name, lambda: False, (name,)),))
    packages._fetch_lists.cache_clear()
    assert commands == ["update", "install", "install"]


class Terminal(StringIO):
    """Somebody who is there to answer."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "options", "code"),
    [
        (Terminal("n\n"), [], 3),
        (Terminal("\n"), [], 3),
        (Terminal("y\n"), [], 0),
        (Terminal("n\n"), ["--yes"], 0),
        (StringIO("n\n"), [], 0),
    ],
)
def test_root_is_asked_before_lists_of_packages_are_fetched_for_prometheus(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stream: StringIO,
    options: list[str],
    code: int,
) -> None:
    fetched: list[Path] = []

    def unpack() -> Path:
        fetched.append(Path("/prometheus"))
        return fetched[0]

    monkeypatch.setattr(setup, "guard", lambda: None)
    monkeypatch.setattr(packages, "announce", lambda: None)
    for name, stand_in in (("program", lambda: None), ("have", lambda _: True), ("unpack", unpack)):
        monkeypatch.setattr(setup.prometheus, name, stand_in)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(sys, "stdin", stream)
    with caplog.at_level("INFO", logger="testbed.host"):
        assert setup.main([*options, "observe"]) == code
    assert len(fetched) == (code == 0)
    assert "apt-get update" in caplog.text


def test_nobody_is_asked_where_prometheus_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(setup.prometheus, "program", lambda: tmp_path)
    assert setup.changes("observe") == []


def test_make_lists_every_target() -> None:
    shown = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True)
    targets = ["help", "setup", "setup-stop", "demo", "test", "nightly", "coverage", "test-times"]
    targets += ["mutants", "lock", "lower-bounds", "release", "lint", "docs", "run", "compare"]
    targets += ["replay", "examples", "example", "replicate", "gpu", "plots", "images", "observe"]
    targets += ["guest", "doctor", "clean"]
    listed = [line.split()[0] for line in shown.stdout.splitlines() if line.startswith("  ")]
    assert listed == targets
