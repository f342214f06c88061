"""Commands run by a user without any right, who need not exist, on a machine whose folders may be closed to him.

The checkout and the interpreter are made readable for the command alone, in mounts of its own: folders on
the way that others may not enter are covered by empty ones in which only what is needed shows through.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

USER = 61234
_BECOME = [
    "setpriv", f"--reuid={USER}", f"--regid={USER}", "--inh-caps=-all",
    "--bounding-set=-all", "--no-new-privs",
]  # fmt: skip


def needed() -> set[Path]:
    """What the command must be able to read."""
    root = Path(__file__).resolve().parents[1]
    interpreter = Path(sys.executable).resolve().parents[1]
    return {root, interpreter, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}


def closed(path: Path) -> Iterator[Path]:
    """Folders above ``path`` that others may not enter, outermost first."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & 0o001:
            yield folder


def opening() -> str:
    """A shell script that opens the way to everything needed."""
    lines = ["set -e", "hold=$(mktemp -d)", 'mount -t tmpfs tmpfs "$hold"']
    covered = {next(closed(path)): None for path in needed() if any(closed(path))}
    inside = [path for path in needed() if any(folder in path.parents for folder in covered)]
    for number, path in enumerate(inside):
        lines += [f'mkdir "$hold/{number}"', f'mount --bind "{path}" "$hold/{number}"']
    lines += [f'mount -t tmpfs -o mode=755 tmpfs "{folder}"' for folder in covered]
    for number, path in enumerate(inside):
        lines += [f'mkdir -p "{path}"', f'mount --bind "$hold/{number}" "{path}"']
    return "\n".join([*lines, 'umount --lazy "$hold"', 'rmdir "$hold"', 'exec "$@"'])


def as_user(home: Path, *command: str, group: int | None = None) -> list[str]:
    """The command line that runs a command as that user, with ``home`` for his files, and maybe a further group."""
    groups = "--clear-groups" if group is None else f"--groups={group}"
    own_mounts = ["unshare", "--mount", "--propagation", "private", "sh", "-c", opening(), "sh"]
    return [*own_mounts, "env", f"HOME={home}", "USER=nobody", *_BECOME, groups, *command]
