"""Simulation: the same roles on a virtual clock and modelled links. No privileges, no waiting."""
