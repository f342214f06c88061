"""Files of variables for a job: what a line means, and that nothing shows a value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.cli import main
from testbed.errors import InputError
from testbed.runner.exec.launch_spec import MOST_BYTES, LaunchSpec, check_size, named, read_env_file

SECRET = "hunter2-of-the-test"


def read(folder: Path, text: str, **own: str) -> dict[str, str]:
    path = folder / "variables"
    path.write_bytes(text.encode())
    return dict(read_env_file(path, own))


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("A=1\nB=two words", {"A": "1", "B": "two words"}),
        ("# said\n\n  A=1\r\n", {"A": "1"}),
        ('A="quoted" # no comment', {"A": '"quoted" # no comment'}),
        ("A=b=c\nA=last", {"A": "last"}),
        ("A=\nHERE\nNOT_HERE", {"A": "", "HERE": "of ours"}),
        ("\ufeffA=1", {"A": "1"}),
    ],
)
def test_lines_mean_what_they_mean_to_docker(
    tmp_path: Path, text: str, means: dict[str, str]
) -> None:
    assert read(tmp_path, text, HERE="of ours") == means


@pytest.mark.parametrize(
    ("text", "means"),
    [("A=b=c", ("A", "b=c")), ("A=", ("A", "")), ("HERE", ("HERE", "of ours")), ("HERE=x", ("HERE", "x"))],
)  # fmt: skip
def test_a_variable_of_the_command_line(text: str, means: tuple[str, str]) -> None:
    assert named(text, {"HERE": "of ours"}) == means


@pytest.mark.parametrize(("text", "said"), [("NOT_HERE", "is not set"), ("=x", "name"), ("", "name"), ("a b=x", "name")])  # fmt: skip
def test_none_of_that_name(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        named(text, {"HERE": "of ours"})


@pytest.mark.parametrize("line", [f"={SECRET}", f"my password {SECRET}", f"a name={SECRET}"])
def test_what_is_no_variable_is_not_shown(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, f"A=1\n{line}")
    assert "variables:2" in str(refused.value) and SECRET not in str(refused.value)


def test_a_file_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "name: job\nnodes: {worker: {role: worker, count: 2}}\n"
        "links: {default: {up: {rate: 1 Mbit/s, queue: 50 ms}, down: {rate: 1 Mbit/s, queue: 50 ms}}}\n"
    )
    options = ["--fabric", "sim", "--env-file", str(tmp_path)]
    with pytest.raises(SystemExit) as left:
        main(["exec", str(scenario), *options, "--", "true"])
    assert left.value.code == 2
    assert "this is a directory" in capsys.readouterr().err


def test_more_than_a_process_can_be_given_is_refused() -> None:
    check_size((("A", "x" * (MOST_BYTES - 2)),))
    with pytest.raises(InputError, match="Put what is long into a file"):
        check_size((("A", "x" * (MOST_BYTES - 1)),))


def test_records_have_names_alone() -> None:
    order = LaunchSpec(("sh",), environment=(("TOKEN", SECRET), ("DATA", "x")))
    assert order.to_json()["variables"] == ["DATA", "TOKEN"]
    assert SECRET not in json.dumps(order.to_json()) + repr(order)
