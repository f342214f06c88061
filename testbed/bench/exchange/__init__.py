"""Benchmarks of exchanges."""
