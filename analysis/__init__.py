"""From the records of runs to figures, a table and a report. Reads files; needs no root and no
network."""
