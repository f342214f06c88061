"""Move the code base into another tree, driven by ``map.json``: ``python -m tools.rehouse check | move | cycles``."""
