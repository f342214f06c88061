"""Records of a run: events, run directory, manifest, metrics. Figures use nothing else."""
