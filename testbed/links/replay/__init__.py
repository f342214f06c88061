"""Replay of a timeline on links, and how exactly it was followed."""
