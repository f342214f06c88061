"""Nodes as containers, made by Docker Compose."""
