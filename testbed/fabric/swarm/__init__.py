"""Nodes as tasks of a Docker Swarm, on several hosts."""
