"""Measurements against what else there is, in the same run: links, compression, exchanges,
overlap, controllers, coded exchanges, and virtual time against real links.
"""
