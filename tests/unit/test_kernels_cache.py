"""Where compiled loops are kept: in the first place that can be written to, and compiled once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from unprivileged import as_user

from testbed.compress.kernels import compilation
from testbed.process import PACKAGE

KERNELS = Path(compilation.__file__).parent
SCRIPT = """
import json, sys
import numba
from testbed.compress.kernels.compilation import alone, directory
with alone():
    from testbed.compress.kernels.passes import add_at, warm_sparse
    warm_sparse()
read = sum(add_at.stats.cache_hits.values())
assert sys.modules["testbed"].__file__.startswith(sys.argv[1])
print(json.dumps({"directory": str(directory()), "read": read, "users": numba.config.CACHE_DIR}))
"""


def sources(tree: Path) -> Path:
    return tree / "testbed" / "compress" / "kernels"


@contextmanager
def loops_by_themselves() -> Iterator[Path]:
    """In a folder that anybody may enter."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    shutil.copytree(KERNELS, sources(root), ignore=shutil.ignore_patterns("__pycache__"))
    for package in (root / "testbed", root / "testbed" / "compress"):
        (package / "__init__.py").touch()
    yield root
    shutil.rmtree(root)


@pytest.fixture
def tree() -> Iterator[Path]:
    with loops_by_themselves() as root:
        yield root


@pytest.fixture(scope="module")
def compiled() -> Iterator[tuple[Path, dict[str, Any]]]:
    """A tree in which a process has compiled, and what that found."""
    with loops_by_themselves() as root:
        yield root, run(root)


def environment(tree: Path, **given: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, "PYTHONPATH": str(tree), "HOME": str(tree / "home"), **given}


def start(tree: Path, *before: str, **given: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-c", SCRIPT, str(tree)],
        env=environment(tree, **given),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    found: dict[str, Any] = json.loads(out)
    return found


def run(tree: Path, *before: str, **given: str) -> dict[str, Any]:
    """What a process of its own finds; ``before``: a command that starts it."""
    return end(start(tree, *before, **given))


def in_the_way(place: Path) -> Path:
    """A file where a folder would have to be made: not even root can."""
    place.write_text("")
    return place


def test_beside_the_source_and_read_by_the_next_process(
    compiled: tuple[Path, dict[str, Any]],
) -> None:
    tree, first = compiled
    second = run(tree)
    assert Path(first["directory"]).is_relative_to(sources(tree) / "__pycache__")
    assert second["directory"] == first["directory"]
    assert (first["read"], second["read"]) == (0, 1)
    assert first["users"] == ""  # functions of the user's own are kept where they always were
    assert not (tree / "home").exists()


def test_where_the_environment_says_with_what_another_place_holds(
    compiled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    found = run(compiled[0], NUMBA_CACHE_DIR=str(tmp_path))
    assert Path(found["directory"]).is_relative_to(tmp_path)
    assert (found["read"], found["users"]) == (1, str(tmp_path))


# every day test_an_image_comes_with_compiled_loops reads in a user's cache, and the next has the source closed
@pytest.mark.nightly
def test_the_users_cache_where_the_source_is_closed(tree: Path) -> None:
    in_the_way(sources(tree) / "__pycache__")
    assert Path(run(tree)["directory"]).is_relative_to(tree / "home" / ".cache" / "narrows")


def test_a_temporary_place_where_there_is_no_other(tree: Path, tmp_path: Path) -> None:
    in_the_way(sources(tree) / "__pycache__")
    in_the_way(tree / "home")
    found = run(tree, TMPDIR=str(tmp_path), NUMBA_CACHE_DIR=str(tree / "home" / "given"))
    assert Path(found["directory"]).is_relative_to(tmp_path)
    assert list(tmp_path.iterdir()) == []  # gone with the process


@pytest.mark.root
@pytest.mark.parametrize("place", ["home", "tmp"])
def test_an_image_comes_with_compiled_loops(
    compiled: tuple[Path, dict[str, Any]], place: str
) -> None:
    """Made by root beside the source; read by a user who can write to that folder at most."""
    tree, _ = compiled
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for one in ("home", "tmp"):
            (folder / one).mkdir()
        for one in (place, "tmp"):
            (folder / one).chmod(0o777)
        found = run(tree, *as_user(folder / "home"), TMPDIR=str(folder / "tmp"))
        assert Path(found["directory"]).is_relative_to(folder / place)
    assert found["read"] == 1


def test_of_several_that_start_together_one_compiles(tree: Path) -> None:
    found = [end(process) for process in [start(tree) for _ in range(3)]]
    assert sorted(one["read"] for one in found) == [0, 1, 1]
    assert len({one["directory"] for one in found}) == 1


def test_places_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/given")
    monkeypatch.setenv("XDG_CACHE_HOME", "/users")
    assert compilation._bases() == [Path("/given"), KERNELS / "__pycache__", Path("/users")]
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert compilation._bases() == [KERNELS / "__pycache__", Path("/home/somebody/.cache")]


def test_a_state_is_that_of_all_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Numba looks at the file of a function alone, not at those of the functions that it calls."""
    monkeypatch.setattr(compilation, "_SOURCES", tmp_path)
    (tmp_path / "one.py").write_text("a = 1")
    (tmp_path / "two.py").write_text("b = 2")
    before = compilation._state()
    assert before == compilation._state()
    (tmp_path / "two.py").write_text("b = 3")
    assert before != compilation._state()


def test_what_older_sources_left_is_removed(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    assert compilation._prepared(old, []) == old
    (old / "code").write_text("old")
    unfinished = tmp_path / "unfinished-by-another"
    unfinished.mkdir()
    assert compilation._prepared(new, []) == new
    assert sorted(tmp_path.iterdir()) == [new, unfinished]
    assert compilation._prepared(new, [old]) == new and list(new.iterdir()) == []


def test_settings_in_the_working_directory_are_not_numbas(tmp_path: Path) -> None:
    """Numba takes ``.numba_config.yaml`` from there, if it finds a reader of YAML."""
    (tmp_path / "reader").mkdir()
    (tmp_path / "reader" / "yaml.py").write_text("from json import load as safe_load\n")
    (tmp_path / ".numba_config.yaml").write_text('{"disable_jit": 1}')
    script = "{}; numba.core.config.reload_config(); import yaml; print(numba.config.DISABLE_JIT)"
    said = [
        subprocess.run(
            [sys.executable, "-P", "-c", script.format(imported)],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{PACKAGE.parent}:{tmp_path / 'reader'}"},
            capture_output=True, text=True, check=True,
        ).stdout
        for imported in ("import numba", "from testbed.compress.kernels.compilation import load_numba; numba = load_numba()")
    ]  # fmt: skip
    assert said == ["1\n", "0\n"]
