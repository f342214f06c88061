"""How values are written: one file for each coding."""
