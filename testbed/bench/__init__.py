"""Benchmarks: how exact and how costly the links are, against other ways to make them in the same run."""
