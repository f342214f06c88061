"""Reliable, rate-controlled IP multicast between nodes: one copy of a message on its sender's
link."""
