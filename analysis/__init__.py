"""From the records of runs to figures, a table and a report. Reads files; needs no root and no
network."""

MARGIN = 0.005
"""A loss of accuracy that would not matter: half a point."""
