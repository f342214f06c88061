"""Coded synchronous SGD: nodes compute blocks of the mini-batch redundantly and so have less to
tell each other.

Everything here but ``exchange`` is pure: which node computes what, what it sends to whom, how sums
of pieces are taken apart again. Blocks, packets and nodes have numbers that all nodes derive alike
from the scheme, n and r.
"""
