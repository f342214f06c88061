"""Virtual time against real links: the same scenarios on both, and how far their step times are apart."""
