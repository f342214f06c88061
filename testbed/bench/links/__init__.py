"""Benchmarks of emulated links."""
