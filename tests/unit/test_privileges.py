"""Who may do what: user namespaces that are forbidden, and users that a namespace does not know."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest

from testbed.errors import InputError
from testbed.host import user_namespace
from testbed.process import is_mapped, module_command

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
    ],
)
def test_users_that_a_namespace_knows(rows: str, known: int, unknown: int | None) -> None:
    assert is_mapped(known, rows)
    assert unknown is None or not is_mapped(unknown, rows)


def test_who_has_lost_its_parent_ends_without_a_word() -> None:
    """Its network namespace may be gone too, which is no news then."""
    options = ["--netns", "/nowhere", "--parent", "1", "--", "true"]
    command = module_command("testbed.fabric.node_launcher", *options)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
