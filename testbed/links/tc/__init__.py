"""Queues and emulated lines of Linux traffic control."""
