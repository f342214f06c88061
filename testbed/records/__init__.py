"""Records of a run: events, run directory, manifest, verdict, metrics. Figures are drawn from
nothing else."""
