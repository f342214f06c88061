"""Narrows: a network-emulation testbed for distributed deep-learning training."""

__version__ = "0.1.0"
