"""Verdicts on what papers claim, from comparisons of ours. One module per paper, named as under ``scenarios/papers``."""
