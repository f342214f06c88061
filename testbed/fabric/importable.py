"""Having programs of any Python find this package, and nothing else that happens to lie beside it."""

from __future__ import annotations

from pathlib import Path

from testbed.process import PACKAGE

_MODULE = '''"""The package ``testbed``, from where it is installed."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

_spec = spec_from_file_location("testbed", {init!r}, submodule_search_locations=[{package!r}])
sys.modules["testbed"] = module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["testbed"])
'''


def offer(folder: Path) -> Path:
    """What to put last in ``PYTHONPATH``: a folder below ``folder`` with nothing but a package that becomes this one.

    The package's own folder would not do: of a checkout it has other packages, of an environment all libraries.
    """
    place = folder / ".python"
    if not place.is_dir():
        for new in (place, place / "testbed"):
            new.mkdir()
            new.chmod(0o755)
        module = place / "testbed" / "__init__.py"
        module.write_text(_MODULE.format(init=str(PACKAGE / "__init__.py"), package=str(PACKAGE)))
        module.chmod(0o644)
    return place
