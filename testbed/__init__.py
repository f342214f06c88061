"""Narrows: a network-emulation testbed for distributed deep-learning training."""

__version__ = "0.1.0"

ASIDE = "NARROWS_ASIDE_"
"""Begins the names of variables that are set aside in our own processes; jobs have them again."""
