"""Benchmarks of compression."""
