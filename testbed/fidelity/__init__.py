"""How exactly links did what was requested: evidence, verdict, certificate."""
