"""Make what a release consists of, in ``build/release/``: wheel, source archive, bill of materials
(CycloneDX, of the locks), the repository as an archive for long keeping, and their SHA-256.

``make release``. The tree must be as committed. On a tag ``vX.Y.Z``, the version must be X.Y.Z.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys

from testbed import __version__
from testbed.host.paths import PACKAGES, ROOT, TORCH_CPU, project

FOLDER = ROOT / "build" / "release"


def main() -> int:
    if problem := unfit():
        print(f"release: {problem}", file=sys.stderr)
        return 1
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    python = [sys.executable, "-m"]
    # The same commit gives the same files.
    when = answer("git", "log", "-1", "--format=%ct")
    build = [*python, "hatchling", "build", "--target", "sdist", "--target", "wheel"]
    call(*build, "--directory", str(FOLDER), SOURCE_DATE_EPOCH=when)
    prefix = f"narrows-{__version__}"
    lock = FOLDER / "lock.txt"
    lock.write_text("".join(path.read_text() for path in (PACKAGES, TORCH_CPU)))
    bill = [*python, "cyclonedx_py", "requirements", str(lock), "--pyproject", "pyproject.toml"]
    call(*bill, "--output-reproducible", "--output-file", str(FOLDER / f"{prefix}.cdx.json"))
    lock.unlink()
    archive = ["git", "archive", "--format=tar.gz", f"--prefix={prefix}-repository/"]
    call(*archive, "--output", str(FOLDER / f"{prefix}-repository.tar.gz"), "HEAD")
    files = sorted(FOLDER.iterdir())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (FOLDER / "SHA256SUMS").write_text("".join(sums))
    for path in sorted(FOLDER.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size} B")
    return 0


def unfit() -> str | None:
    """Why this tree is no release; None if it is one."""
    if project()["project"]["version"] != __version__:
        return f"pyproject.toml and testbed/__init__.py ({__version__}) name different versions"
    if changed := answer("git", "status", "--porcelain"):
        return f"there are changes that are not committed:\n{changed}"
    tags = [tag for tag in answer("git", "tag", "--points-at", "HEAD").split() if tag[:1] == "v"]
    if tags and f"v{__version__}" not in tags:
        return f"the tag is {tags[0]}, the version {__version__}"
    return None


def answer(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def call(*command: str, **variables: str) -> None:
    environment = {**os.environ, **variables}
    subprocess.run(command, cwd=ROOT, check=True, env=environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
