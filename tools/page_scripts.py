"""Fetch the scripts that the report's page has inside, by version, and check their hashes.

``python tools/page_scripts.py`` writes those of ``analysis/page/vendor/scripts.json`` and their
licences anew; ``--pin`` accepts the hashes that npm's registry gives (after a change of a version).
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parents[1] / "analysis" / "page" / "vendor"
LIST = VENDOR / "scripts.json"


def main() -> int:
    scripts: list[dict[str, Any]] = json.loads(LIST.read_text(encoding="utf-8"))
    for script in scripts:
        package = packed(script["name"], script["version"])
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(package).digest()).decode()
        if "--pin" in sys.argv:
            script["integrity"] = integrity
        elif integrity != script["integrity"]:
            sys.exit(f"{script['name']} {script['version']}: {integrity} is not what is listed")
        with tarfile.open(fileobj=io.BytesIO(package)) as archive:
            text = member(archive, f"package/{script['file']}").decode()
            kept = [line for line in text.splitlines() if not line.startswith("//# sourceMapping")]
            (VENDOR / f"{script['name']}.js").write_text("\n".join(kept) + "\n", encoding="utf-8")
            (VENDOR / f"{script['name']}.LICENSE").write_bytes(member(archive, "package/LICENSE"))
        script["sha256"] = digest(script["name"])
        print(f"{script['name']} {script['version']}")
    LIST.write_text(json.dumps(scripts, indent=2) + "\n", encoding="utf-8")
    return 0


def digest(name: str) -> str:
    """SHA-256 of the file as it is kept."""
    return hashlib.sha256((VENDOR / f"{name}.js").read_bytes()).hexdigest()


def packed(name: str, version: str) -> bytes:
    """The package as npm's registry has it."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, f"{name}@{version}"]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
        (path,) = Path(folder).glob("*.tgz")
        return path.read_bytes()


def member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None, name
    return file.read()


if __name__ == "__main__":
    sys.exit(main())
