"""Who may do what: user namespaces that are forbidden, and users that a namespace does not know."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from testbed.errors import InputError, MachineError
from testbed.fabric import file_view
from testbed.fabric.file_view import NODE_USER, Account, Shown, named, programs
from testbed.host import user_namespace
from testbed.process import environment, is_mapped, is_root_outside, module_command

ALLOWED = {
    "kernel.unprivileged_userns_clone": "1",
    "kernel.apparmor_restrict_unprivileged_userns": "0",
    "user.max_user_namespaces": "96365",
}


@pytest.mark.parametrize(
    ("settings", "number", "change"),
    [
        ({"kernel.unprivileged_userns_clone": "0"}, errno.EPERM, "unprivileged_userns_clone=1"),
        (
            {"kernel.apparmor_restrict_unprivileged_userns": "1"},
            errno.EACCES,
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ({"user.max_user_namespaces": "0"}, errno.ENOSPC, "user.max_user_namespaces=15000"),
        ({"user.max_net_namespaces": "0"}, errno.ENOSPC, "user.max_net_namespaces=15000"),
        ({"user.max_user_namespaces": "20000"}, errno.ENOSPC, "user.max_user_namespaces=40000"),
        ({}, errno.EPERM, "seccomp"),
    ],
)
def test_the_setting_to_change_is_named(settings: dict[str, str], number: int, change: str) -> None:
    error = OSError(number, os.strerror(number))
    refusal = user_namespace.forbidden(error, {**ALLOWED, **settings}.get)
    assert refusal.exit_code == 3 and change in str(refusal)
    for way in ("sudo", "--fabric docker", "--guest", os.strerror(number)):
        assert way in str(refusal)
    assert ("sysctl" in str(refusal)) == (change != "seccomp")


def test_several_settings_are_named_together() -> None:
    settings = {**ALLOWED, "kernel.unprivileged_userns_clone": "0", "user.max_user_namespaces": "0"}
    refusal = str(user_namespace.forbidden(OSError(errno.EPERM, "no"), settings.get))
    assert "unprivileged_userns_clone=1 user.max_user_namespaces=15000`" in refusal


def test_only_the_fabric_that_needs_it_enters_a_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[bool] = []
    monkeypatch.setattr(user_namespace, "enter_own_world", lambda: entered.append(True))
    monkeypatch.setattr(user_namespace, "privileged", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not user_namespace.become_able("docker", keep=True) and not user_namespace.become_able(
        "sim"
    )
    assert not entered
    assert user_namespace.become_able("netns") and entered == [True]
    with pytest.raises(InputError, match="--keep"):
        user_namespace.become_able("netns", keep=True)
    monkeypatch.setattr(user_namespace, "privileged", lambda: True)
    assert not user_namespace.become_able("netns", keep=True) and entered == [True]


@pytest.mark.parametrize(
    ("rows", "known", "unknown"),
    [
        ("         0          0 4294967295\n", 65534, None),
        ("         0       1000          1\n", 0, 65534),
        ("0 1000 1\n1 100000 65536\n", 65534, 70000),
        ("0 1000 1\n1 100000 65536\n", 65536, 65537),
        ("10 1000 5\n", 10, 9),
        ("10 1000 5\n", 14, 15),
    ],
)
def test_users_that_a_namespace_knows(rows: str, known: int, unknown: int | None) -> None:
    assert is_mapped(known, rows)
    assert unknown is None or not is_mapped(unknown, rows)


def test_root_without_privileges_gets_no_nodes_that_are_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_namespace, "privileged", lambda: False)
    monkeypatch.setattr(user_namespace, "enter_own_world", pytest.fail)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not user_namespace.become_able("docker")
    with pytest.raises(MachineError, match="nodes: they would run as root"):
        user_namespace.become_able("netns")


@pytest.mark.parametrize(
    ("rows", "outside"),
    [
        ("         0          0 4294967295\n", True),
        ("         0          0          1\n", True),
        ("         0       1000          1\n", False),
        ("0 100000 65536\n", False),
        ("1 0 1\n0 1 1\n", False),
    ],
)
def test_root_of_a_namespace_may_be_root_outside(rows: str, outside: bool) -> None:
    assert is_root_outside(rows) == outside


@pytest.mark.root
def test_nodes_of_a_namespace_without_their_user_are_refused_where_they_would_be_root() -> None:
    script = "from testbed.fabric.file_view import account\nprint(account())"
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", *command],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    if "unshare failed" in done.stderr:
        pytest.skip("this machine allows no user namespaces")
    assert done.returncode == 1 and "MachineError: nodes would run as root" in done.stderr


def test_who_has_lost_its_parent_ends_without_a_word() -> None:
    """Its network namespace may be gone too, which is no news then."""
    options = ["--netns", "/nowhere", "--parent", "1", "--", "true"]
    command = module_command("testbed.fabric.node_launcher", *options)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_files_that_a_command_names_in_tmp_are_shown_as_they_are_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TemporaryDirectory(dir="/tmp") as temporary:
        folder = Path(temporary)
        (folder / "script.py").touch()
        (folder / "away").symlink_to("/usr/lib")
        command = ["python", str(folder / "script.py"), f"--os={folder}/away", "/etc"]
        state = folder.stat()
        own = Shown(str(folder), pin=(state.st_dev, state.st_ino))
        monkeypatch.setattr(file_view, "account", lambda: Account(NODE_USER, NODE_USER))
        assert named(command, Path("/")) == [own]
        monkeypatch.setattr(file_view, "account", lambda: None)
        away = Path("/usr/lib").stat()
        expected = Shown(f"{folder}/away", pin=(away.st_dev, away.st_ino))
        assert named(command, Path("/")) == [own, expected]


@pytest.mark.parametrize("whose", [None, Account(NODE_USER, NODE_USER)])
def test_a_script_among_the_arguments_is_no_name_of_a_file(
    whose: Account | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two slashes it may be longer than any name."""
    monkeypatch.setattr(file_view, "account", lambda: whose)
    assert named(["x" * 300, f"x/{'x' * 300}/x"], Path("/tmp")) == []


def test_a_kernel_that_cannot_make_all_below_a_folder_read_only_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked for a call that no kernel has, as Linux before 5.12 has none with the true number."""
    monkeypatch.setattr(file_view, "_SET_ATTRIBUTES", 4095)
    with pytest.raises(MachineError, match=r"need Linux 5\.12 or newer") as error:
        file_view._set_attributes(-100, b"/", 0)
    assert "docker" in error.value.fix


def test_roots_nodes_are_shown_nothing_in_tmp_that_a_link_leads_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_view, "account", lambda: Account(NODE_USER, NODE_USER))
    with TemporaryDirectory(dir="/tmp") as temporary:
        folder = Path(temporary)
        for name in ("others/secret", "own/data"):
            (folder / name).mkdir(parents=True)
            (folder / name / "file").touch()
        (folder / "own/there").symlink_to("../others/secret")
        (folder / "own/file").symlink_to("../others/secret/file")
        (folder / "over").symlink_to("others")
        ways = (
            "own/there",
            "own/there/file",
            "own/file",
            "over/secret",
            "over/secret/file",
            "own/../others/secret",
        )
        assert named([f"--data={folder}/{way}" for way in ways], Path("/")) == []
        state = (folder / "own/data").stat()
        expected = Shown(f"{folder}/own/data", pin=(state.st_dev, state.st_ino))
        assert named([f"{folder}/own/data", f"{folder}/own/data/file"], Path("/")) == [expected]
        assert (
            named(["/tmp/../etc/passwd", f"{folder}/nowhere", "/tmp/a\0b", "/tmp"], Path("/")) == []
        )


def test_of_a_folder_that_is_put_in_the_place_of_another_only_the_first_is_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever swaps a folder and a link meanwhile: it is the folder, or nothing."""
    monkeypatch.setattr(file_view, "account", lambda: Account(NODE_USER, NODE_USER))
    with TemporaryDirectory(dir="/tmp") as temporary:
        folder, ended = Path(temporary), threading.Event()
        (folder / "d").mkdir()
        (folder / "l").symlink_to("/usr/lib")
        own = {(each.st_dev, each.st_ino) for each in [(folder / "d").stat()]}

        def swap() -> None:
            while not ended.is_set():
                for old, new in (
                    ("d", "x"),
                    ("l", "d"),
                    ("x", "l"),
                    ("l", "x"),
                    ("d", "l"),
                    ("x", "d"),
                ):
                    (folder / old).rename(folder / new)

        swapping = threading.Thread(target=swap)
        swapping.start()
        try:
            found = [shown.pin for _ in range(3000) for shown in named([f"{folder}/d"], Path("/"))]
        finally:
            ended.set()
            swapping.join()
        assert {tuple(pin) for pin in found if pin is not None} <= own


@pytest.mark.root
def test_roots_nodes_are_shown_no_folder_of_a_search_path_that_others_could_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a ``PATH`` that was kept when a user became root."""
    monkeypatch.setenv("HOME", str(tmp_path / "root"))
    secrets = ("root/.local/share/keyrings/login", "root/.cargo/credentials.toml", "alice/.ssh/id")
    for name in (*secrets, "root/.local/bin/tool", "root/.local/lib/x", "root/.cargo/bin/cargo",
                 "alice/bin/tool", "alice/lib/x.py", "venv/pyvenv.cfg", "venv/bin/tool"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "alice/etc").symlink_to("/etc")
    (tmp_path / "alice/venv").symlink_to(tmp_path / "venv/bin")
    for path in (tmp_path / "alice", *(tmp_path / "alice").rglob("*")):
        os.chown(path, 4711, 4711, follow_symlinks=False)
    names = (
        "root/.local/bin",
        "root/.cargo/bin",
        "alice/bin",
        "alice/etc",
        "alice/venv",
        "venv/bin",
    )
    path = os.pathsep.join(str(tmp_path / name) for name in names)
    shown = programs({"PATH": path, "PYTHONPATH": str(tmp_path / "alice/lib")})
    own = {
        os.path.relpath(each.path, tmp_path)
        for each in shown
        if each.path.startswith(str(tmp_path))
    }
    assert own >= {"root/.local/bin", "root/.local/lib", "root/.cargo/bin", "venv"}, own
    real = [Path(each.path).resolve() for each in shown if each.path.startswith(str(tmp_path))]
    assert not any(Path(to) == each or each in Path(to).parents for each in real
                   for to in ("/etc/shadow", *(tmp_path / name for name in secrets)))  # fmt: skip
